"""Target and draft in one server: one load each, out of one checkpoint, both or none."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.serving import Serving, serving
from support.two_roles import DRAFT_SHARD, TARGET_SHARD, write_two_roles
from support.updates import contents

from loadscope.app.load_view import LoadView
from loadscope.app.roles import parse_roles
from loadscope.app.tick import delta
from loadscope.app.together import together
from loadscope.app.updates.update import Update
from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.parameters import parameter_bytes
from loadscope.loader.plan import Options, make_plan
from loadscope.loader.topology import Layout

BOTH = ("target", "draft")
EH_PROJ = "model.layers.3.eh_proj.weight"
DRAFT_PARAM = "model.decoder.mlp.experts.w13_weight"
TARGET_PARAM = "model.layers.1.mlp.experts.w13_weight"
LISTS = ("/parameters", "/skips", "/pairings", "/findings", "/kernels", "/ranks", "/timings",
         "/events", "/mapping/search", "/quant")  # fmt: skip
SUMS = ("bytes_done", "bytes_total", "parameters_full", "parameters_total", "pairs_closed",
        "elements_written", "skipped")  # fmt: skip


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("disk")
    write_two_roles(folder / "good")
    write_two_roles(folder / "no-draft", has_draft=False)
    return folder


@pytest.fixture(scope="module")
def server(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Both roles loaded on both ranks of tp 2; nothing changes them."""
    state = tmp_path_factory.mktemp("state")
    with serving(
        state, disk / "good", roots=(disk,), roles=BOTH, layout=Layout(tp_size=2), ranks="all"
    ) as server:
        ended(server)
        yield server


@pytest.fixture
def own(disk: Path, tmp_path: Path) -> Iterator[Serving]:
    """Both roles loaded, for tests that load again."""
    with serving(tmp_path, disk / "good", roots=(disk,), roles=BOTH) as server:
        ended(server)
        yield server


def ended(server: Serving) -> list[dict[str, Any]]:
    """The loads of the newest update, once nothing runs."""
    server.wait()
    server.services.jobs.wait()
    rows = server.get("/loads", limit=10)["items"]
    newest = [row for row in rows if row["update"] == rows[0]["update"]]
    return [server.get(f"/loads/{row['id']}") for row in reversed(newest)]


def addresses(server: Serving) -> dict[tuple[str, int, str], int]:
    return {
        (role, rank, name): tensor.data_ptr()
        for role, stores in server.services.jobs.stores.items()
        for rank, store in stores.items()
        for name, tensor in store.parameters.items()
    }


def spoil_after_planning(server: Serving, damage: Callable[[], None]) -> None:
    """The files change between the plan and the first byte, once."""
    admission = server.services.jobs._admission
    prepare = admission.prepare

    def prepare_then_damage(update: Update) -> None:
        prepare(update)
        damage()
        admission.prepare = prepare  # type: ignore[method-assign]

    admission.prepare = prepare_then_damage  # type: ignore[method-assign]


def reload_unchecked(server: Serving, path: str, **fields: Any) -> dict[str, Any]:
    """Whose files are not read before the first byte is written; the update, once it has ended."""
    body = {"source": {"type": "disk", "path": path}, "verify": {"level": "none"}, "wait_s": 20}
    answer = server.client.post("/reload", json={**body, **fields})
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


@pytest.mark.parametrize(
    ("text", "roles"),
    [("target", ("target",)), ("draft", ("draft",)), ("draft, target", ("draft", "target"))],
)
def test_roles_are_read_in_their_order(text: str, roles: tuple[str, ...]) -> None:
    assert parse_roles(text) == roles


@pytest.mark.parametrize("text", ["", "target,", "teacher", "draft,draft", "Target"])
def test_roles_that_do_not_exist_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected target, draft|named twice"):
        parse_roles(text)


def test_each_role_has_a_load_of_its_own(server: Serving) -> None:
    target, draft = ended(server)
    assert (target["role"], draft["role"]) == BOTH
    assert target["update"] == draft["update"] == target["id"] == draft["id"] - 1
    for load in (target, draft):
        assert (load["status"], load["verdict"]) == ("finished", "pass")
        assert load["state"]["parameters_full"] == load["state"]["parameters_total"] > 0
    assert server.get("/readyz") == {"ready": True, "reasons": []}


def test_the_draft_has_its_own_parameters(server: Serving) -> None:
    draft = {row["name"] for row in server.items("/parameters", role="draft")}
    target = {row["name"] for row in server.items("/parameters")}
    assert DRAFT_PARAM in draft - target
    assert TARGET_PARAM in target - draft
    assert "model.embed_tokens.weight" not in draft


@pytest.mark.parametrize("path", LISTS)
def test_every_list_says_which_role_it_is_about(server: Serving, path: str) -> None:
    assert server.get(path)["role"] == "target"
    for role in BOTH:
        assert server.get(path, role=role)["role"] == role
    assert server.get(path, load=2)["role"] == "draft"
    assert server.get(path, load=1, role="draft")["role"] == "draft"


def test_coverage_and_plan_are_per_role(server: Serving) -> None:
    for number, role in enumerate(BOTH, start=1):
        coverage = server.get("/coverage", role=role)
        assert (coverage["load"], coverage["role"]) == (number, role)
        assert coverage["parameters_total"] == coverage["parameters_full"] > 0
        shared = ["model.embed_tokens.weight", "lm_head.weight"] if role == "draft" else []
        assert coverage["shared"] == shared
        plan = server.get("/plan", role=role)
        assert plan["digest"] == server.get(f"/loads/{number}")["digest"]
        assert plan["role"] == role
    assert server.get("/plan", role="draft")["digest"] != server.get("/plan")["digest"]


def test_one_name_goes_two_ways(server: Serving) -> None:
    target, draft = (server.get("/mapping", name=EH_PROJ, role=role) for role in BOTH)
    assert (target["role"], target["outcome"]) == ("target", "skipped")
    assert (draft["role"], draft["outcome"]) == ("draft", "loaded")
    assert {place["param"] for place in draft["destinations"]} == {"model.eh_proj.weight"}
    (event,) = server.items("/events", name=EH_PROJ)
    assert event["kind"] == "skipped"
    kinds = {event["kind"] for event in server.items("/events", name=EH_PROJ, role="draft")}
    assert kinds == {"renamed", "read", "copied"}


def test_a_parameter_of_the_other_role_is_unknown(server: Serving) -> None:
    assert server.get("/mapping", name=DRAFT_PARAM, role="draft")["direction"] == "reverse"
    assert server.client.get("/mapping", params={"name": DRAFT_PARAM}).status_code == 404


def test_a_role_that_is_not_served_names_those_that_are(disk: Path, tmp_path: Path) -> None:
    with serving(tmp_path, disk / "good", roots=(disk,)) as alone:
        ended(alone)
        for path in (*LISTS, "/coverage", "/plan", "/mapping?name=x"):
            mark = "&" if "?" in path else "?"
            answer = alone.client.get(f"{path}{mark}role=draft")
            assert answer.status_code == 404, path
            problem = answer.json()
            assert (problem["type"], problem["served"]) == (
                "urn:loadscope:no-such-role", ["target"],
            )  # fmt: skip
            assert "served: target" in problem["detail"]
        assert alone.client.get("/coverage?role=teacher").status_code == 422


def test_a_draft_alone_is_the_default_of_its_server(disk: Path, tmp_path: Path) -> None:
    with serving(tmp_path, disk / "good", roots=(disk,), roles=("draft",)) as server:
        (load,) = ended(server)
        assert (load["role"], load["status"]) == ("draft", "finished")
        assert server.get("/coverage")["role"] == "draft"
        assert server.get("/mapping", name=EH_PROJ)["outcome"] == "loaded"
        answer = server.client.get("/coverage?role=target")
        assert answer.json()["served"] == ["draft"]


def test_what_if_takes_every_option(server: Serving) -> None:
    draft = server.get("/plan", draft=True)
    assert draft["role"] == "draft"
    assert server.get("/plan", tp_size=1, role="draft")["role"] == "draft"
    assert draft["totals"]["parameters"]["shared"] == 2
    options = {"fuse_shared_experts": True, "deepgemm_bmm": True, "platform": "hip"}
    plan = server.get("/plan", **options)
    assert {key: plan["options"][key] for key in options} == options
    assert server.client.get("/plan?role=target&draft=true").status_code == 422
    assert server.client.get("/plan?quantization=nonsense").status_code in (200, 422)


def test_a_reload_loads_every_role_into_the_same_memory(own: Serving) -> None:
    before = addresses(own)
    assert {role for role, _rank, _name in before} == set(BOTH)
    assert own.reload("good").json()["loads"] == [3, 4]
    assert [load["status"] for load in ended(own)] == ["finished", "finished"]
    assert addresses(own) == before


def test_a_checkpoint_without_a_draft_is_refused_for_both(own: Serving) -> None:
    before = addresses(own)
    epochs = [s.epoch for ranks in own.services.jobs.stores.values() for s in ranks.values()]
    answer = own.reload("no-draft")
    assert answer.status_code == 422
    problem = answer.json()
    assert (problem["role"], problem["load"], problem["url"]) == ("draft", 4, "/loads/4")
    errors = [one for one in problem["findings"] if one["level"] == "error"]
    assert [one["subject"] for one in errors] == ["num_nextn_predict_layers"]
    target, draft = ended(own)
    assert (target["status"], draft["status"]) == ("refused", "refused")
    assert (target["state"]["because"], draft["state"]["because"]) == (4, None)
    assert "the draft (load 4) was refused" in target["sentence"]
    assert addresses(own) == before
    assert epochs == [
        s.epoch for ranks in own.services.jobs.stores.values() for s in ranks.values()
    ]
    assert own.get("/readyz")["ready"]


def cut(path: Path) -> Callable[[], None]:
    whole = path.read_bytes()
    return lambda: path.write_bytes(whole[: len(whole) // 3]) and None  # type: ignore[func-returns-value]


def test_a_failure_of_the_second_role_spoils_the_first(own: Serving, disk: Path) -> None:
    shard = write_two_roles(disk / "cut-draft") / DRAFT_SHARD
    spoil_after_planning(own, cut(shard))
    update = reload_unchecked(own, "cut-draft", atomic="off")
    assert (update["state"], update["weights"]) == ("poisoned", "poisoned")
    target, draft = ended(own)
    assert (draft["status"], draft["state"]["failure"]["file"]) == ("failed", DRAFT_SHARD)
    assert (target["status"], target["verdict"]) == ("failed", "fail")
    assert target["state"]["because"] == draft["id"]
    assert "the draft (load 4) failed" in target["state"]["failure"]["message"]
    assert {load["state"]["store"]["state"] for load in (target, draft)} == {"poisoned"}
    reasons = own.client.get("/readyz").json()["reasons"]
    assert [reason.split(":")[0] for reason in reasons] == ["target, rank 0", "draft, rank 0"]
    own.reload("good")
    assert {load["status"] for load in ended(own)} == {"finished"}
    assert own.get("/readyz")["ready"]


def test_a_failure_of_the_first_role_keeps_the_second_from_beginning(
    own: Serving, disk: Path
) -> None:
    shard = write_two_roles(disk / "cut-target") / TARGET_SHARD
    spoil_after_planning(own, cut(shard))
    reload_unchecked(own, "cut-target", atomic="off")
    target, draft = ended(own)
    assert (target["status"], draft["status"]) == ("failed", "interrupted")
    assert draft["state"]["because"] == target["id"]
    assert draft["state"]["bytes_done"] == 0
    answer = own.client.get("/readyz").json()
    # the draft's weights are whole, but of the checkpoint before
    assert "belongs to it" in answer["reasons"][1]


@pytest.mark.parametrize("shard", [TARGET_SHARD, DRAFT_SHARD])
def test_behind_a_second_copy_a_failure_of_either_role_leaves_both_as_they_were(
    own: Serving, disk: Path, shard: str
) -> None:
    before = held(own)
    spoil_after_planning(own, cut(write_two_roles(disk / f"cut-{shard}") / shard))
    update = reload_unchecked(own, f"cut-{shard}")
    assert (update["state"], update["weights"], update["atomicity"]) == (
        "failed", "unchanged", "staged",
    )  # fmt: skip
    assert {load["status"] for load in ended(own)} <= {"failed", "interrupted"}
    assert {load["state"]["store"]["state"] for load in ended(own)} == {"ready"}
    assert held(own) == before
    assert own.get("/readyz")["ready"]


def held(server: Serving) -> dict[str, dict[str, bytes]]:
    """Every byte of both roles."""
    stores = server.services.jobs.stores
    return {role: contents(ranks[0]) for role, ranks in stores.items()}


def test_loads_look_the_same_after_a_restart(disk: Path, tmp_path: Path) -> None:
    paths = [f"{path}?role={role}" for path in (*LISTS, "/coverage", "/plan") for role in BOTH]
    paths += ["/loads", "/loads/1", "/loads/2", "/coverage", f"/mapping?name={EH_PROJ}&role=draft"]
    with serving(tmp_path, disk / "good", roots=(disk,), roles=BOTH) as server:
        ended(server)
        before = {path: server.client.get(path).json() for path in paths}
    with serving(tmp_path, None, roots=(disk,)) as server:
        assert {path: server.client.get(path).json() for path in paths} == before


def test_the_stream_shows_both_and_the_sum(disk: Path, tmp_path: Path) -> None:
    with serving(tmp_path, disk / "good", roots=(disk,), roles=BOTH, pace_s=3.0) as server:
        server.wait_for(lambda row: row["role"] == "draft" and row["status"] == "waiting")
        hub = server.services.hub
        shown = wait_until(hub.document, lambda one: one["state"]["bytes_done"] > 0)
        (draft,) = shown["also"]
        assert (shown["role"], draft["role"]) == BOTH
        # a slow machine may see the target only when it has finished
        assert shown["state"]["status"] in ("loading", "finished")
        assert draft["state"]["status"] == "waiting"
        # the second heat map and the whole bar are there before their first byte
        assert sum(cell["written"] for cell in draft["grid"]["cells"]) == 0
        assert shown["together"]["bytes_total"] == (
            shown["state"]["bytes_total"] + draft["state"]["bytes_total"]
        )
        ended(server)
        server.services.live.flush()
        last = hub.document()
        states = [last["state"], last["also"][0]["state"]]
        for key in SUMS:
            assert last["together"][key] == sum(state[key] for state in states), key
        assert (last["together"]["status"], last["together"]["verdict"]) == ("finished", "pass")
        assert "of target and draft fully written" in last["together"]["sentence"]


def test_deltas_of_both_loads_give_the_next_snapshot(disk: Path, tmp_path: Path) -> None:
    with serving(tmp_path, disk / "good", roots=(disk,), roles=BOTH, pace_s=0.5) as server:
        hub = server.services.hub
        wait_until(hub.document, lambda one: one["also"] and one["also"][0]["grid"])
        first, since = hub.document(), hub.latest.version
        ended(server)
        server.services.live.flush()
        news, last = delta(hub.latest, since), hub.document()
        for before, change, after in zip(parts(first), parts(news), parts(last), strict=True):
            written = [cell["written"] for cell in before["grid"]["cells"]]
            for index, value in zip(*[iter(change["cells"])] * 2, strict=True):
                written[index] = value
            assert written == [cell["written"] for cell in after["grid"]["cells"]]
            assert sum(written) > 0


def parts(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [document, *document["also"]]


def wait_until(look: Callable[[], dict[str, Any]], is_so: Callable[[Any], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + 10
    while not is_so(found := look()):
        assert time.monotonic() < deadline, found["state"]["status"]
        time.sleep(0.01)
    return found


def test_a_load_that_has_not_begun_is_part_of_the_sum() -> None:
    """A client may ask between the moment a load is on record and its first event."""
    views = [LoadView(number, role) for number, role in enumerate(BOTH, start=1)]
    as_one = together([view.document(0.0) for view in views])
    assert as_one is not None
    assert (as_one["status"], as_one["bytes_total"], as_one["verdict"]) == ("idle", 0, "pending")


def test_one_load_has_no_sum(disk: Path, tmp_path: Path) -> None:
    with serving(tmp_path, disk / "good", roots=(disk,)) as server:
        ended(server)
        document = server.services.hub.document()
    assert (document["also"], document["together"]) == ([], None)


def test_the_cause_speaks_for_all(server: Serving) -> None:
    target, draft = (server.get(f"/loads/{number}")["state"] for number in (1, 2))
    refused = [
        {**target, "status": "refused", "because": 2, "sentence": "not begun"},
        {**draft, "status": "refused", "sentence": "no draft layer"},
    ]
    as_one = together(refused)
    assert as_one is not None
    assert (as_one["status"], as_one["sentence"]) == ("refused", "draft: no draft layer")


def test_ranks_are_held_only_if_all_their_roles_fit(disk: Path) -> None:
    from loadscope.app.rank_choice import choose_ranks

    checkpoint = open_checkpoint(disk / "good")
    plans = [make_plan(checkpoint, Layout(), Options(draft=role == "draft")) for role in BOTH]
    target, draft = (parameter_bytes(plan, 0) for plan in plans)
    assert 0 < draft < target
    assert choose_ranks(None, {0: target + draft, 1: target + draft}, 2 * target) == (0,)
