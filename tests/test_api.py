"""The JSON API on a finished load of a small fp8 DeepSeek-V3, tp 2, both ranks."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.golden_checkpoint import write_golden_checkpoint
from support.serving import Serving, serving

from loadscope.app.api.docs import plain_entries
from loadscope.app.plan_document import plan_document
from loadscope.app.problems import code_of
from loadscope.app.updates.refusal import STATUS
from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.events import KINDS, Event
from loadscope.loader.plan import make_plan
from loadscope.loader.state import fold
from loadscope.loader.topology import Layout

GATE = "model.layers.1.mlp.experts.5.gate_proj.weight"
W13 = "model.layers.1.mlp.experts.w13_weight"
Q_A = "model.layers.0.self_attn.q_a_proj.weight"
FUSED = "model.layers.0.self_attn.fused_qkv_a_proj_with_mqa.weight"
# inline code, inline style, another host
FORBIDDEN = re.compile(r"<script(?![^>]*\ssrc=)|\sstyle=|\son\w+=|https?://(?!127)")
ROOT = Path(__file__).parents[1]
DRAFT = "model.layers.3.eh_proj.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_golden_checkpoint("v3-fp8-block", tmp_path_factory.mktemp("disk") / "small-v3")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    state = tmp_path_factory.mktemp("state")
    with serving(state, model, layout=Layout(tp_size=2), ranks="all") as server:
        assert server.wait()["status"] == "finished"
        yield server


@pytest.fixture(scope="module")
def events(server: Serving) -> list[dict[str, Any]]:
    return server.items("/events", limit=1000)


def test_the_load_is_whole(server: Serving) -> None:
    state = server.get("/loads/1")["state"]
    assert state["verdict"] == "pass"
    assert state["bytes_done"] == state["bytes_total"] > 0
    assert state["elements_written"] == state["elements_total"] > 0
    assert state["parameters_full"] == state["parameters_total"] > 0
    assert state["events_dropped"] == 0


def test_readiness_and_health(server: Serving) -> None:
    assert server.get("/healthz") == {"status": "ok"}
    assert server.get("/readyz") == {"ready": True, "reasons": []}


def test_mapping_forward_names_rule_slice_and_events(server: Serving) -> None:
    document = server.get("/mapping", name=GATE)
    assert (document["direction"], document["outcome"]) == ("forward", "loaded")
    assert document["load"] == 1
    assert {place["param"] for place in document["destinations"]} == {W13}
    assert [place["rank"] for place in document["destinations"]] == [0, 1]
    told = server.items("/events", name=GATE)
    assert [event["seq"] for event in told] == document["events"]
    assert {event["kind"] for event in told} == {"renamed", "read", "copied"}
    assert [e["tensor"] for e in told if e["kind"] == "renamed"] == [GATE]


def test_mapping_on_one_rank(server: Serving) -> None:
    document = server.get("/mapping", name=GATE, rank=1)
    assert [place["rank"] for place in document["destinations"]] == [1]
    ranks = {event["rank"] for event in server.items("/events", name=GATE, rank=1)}
    assert ranks == {1}


def test_mapping_backward_lists_the_sources(server: Serving) -> None:
    document = server.get("/mapping", name=W13)
    assert document["direction"] == "reverse"
    assert GATE in {source["name"] for source in document["sources"]}
    assert document["events"]


def test_mapping_of_a_skipped_tensor_has_its_skip_event(server: Serving) -> None:
    document = server.get("/mapping", name=DRAFT)
    assert (document["outcome"], document["reason"]) == ("skipped", "beyond_model")
    (event,) = server.items("/events", name=DRAFT)
    assert (event["kind"], event["tensor"], event["reason"]) == ("skipped", DRAFT, "beyond_model")


def test_a_name_out_of_a_log_line_is_understood(server: Serving) -> None:
    line = "KeyError: 'model.layers.1.mlp.experts.5.gate_proj.weight' not in params_dict"
    assert server.get("/mapping", name=line)["name"] == GATE


def test_an_unknown_name_gets_suggestions(server: Serving) -> None:
    answer = server.client.get("/mapping", params={"name": GATE.replace("gate_proj", "gate_prj")})
    assert answer.status_code == 404
    assert GATE in answer.json()["suggestions"]


def test_the_draft_is_not_there(server: Serving) -> None:
    assert server.client.get("/mapping", params={"name": GATE, "role": "draft"}).status_code == 404


def test_search_pages_through_every_hit_once(server: Serving, model: Path) -> None:
    names = [row["name"] for row in server.items("/mapping/search", q="experts", limit=7)]
    assert len(names) == len(set(names))
    stored = [name for name in open_checkpoint(model).tensors if "experts" in name]
    assert set(stored) <= set(names)


def test_search_by_reason(server: Serving) -> None:
    rows = server.items("/mapping/search", reason="beyond_model", limit=1000)
    assert {row["outcome"] for row in rows} == {"skipped"}
    assert len(rows) == server.get("/skips")["items"][0]["count"]


def test_parameters_add_up_to_the_coverage(server: Serving) -> None:
    rows = server.items("/parameters", limit=50)
    coverage = server.get("/coverage")
    filled = [row for row in rows if row["fill"] == "checkpoint"]
    assert coverage["parameters_total"] == len(filled)
    assert sum(c["written"] for c in coverage["cells"]) == sum(row["written"] for row in filled)
    assert coverage["verdict"] == "pass"


def test_parameters_are_filtered(server: Serving) -> None:
    rows = server.items("/parameters", layer=1, module="experts.w13", state="full")
    assert [(row["name"], row["rank"]) for row in rows] == [(W13, 0), (W13, 1)]
    assert rows[0]["sources"] == 16
    assert server.items("/parameters", state="partial") == []


def test_a_cell_holds_its_parameters_on_every_rank(server: Serving) -> None:
    rows = server.items("/coverage/1/experts.w13")
    assert [(row["name"], row["rank"]) for row in rows] == [(W13, 0), (W13, 1)]
    assert server.client.get("/coverage/1/nothing").status_code == 404
    assert server.items("/coverage/top/lm_head")


def test_slots_of_a_stacked_parameter(server: Serving) -> None:
    slots = server.items(f"/parameters/{W13}/slots", rank=1)
    assert [slot["expert"] for slot in slots] == list(range(8))
    assert all(slot["written"] == slot["total"] > 0 for slot in slots)
    assert server.items(f"/parameters/{FUSED}/slots") == []
    assert server.client.get("/parameters/model.nothing/slots").status_code == 404


def test_skips_explain_themselves(server: Serving) -> None:
    (row,) = server.items("/skips", reason="beyond_model")
    assert (row["expected"], row["rank"]) == (True, None)
    assert 0 < len(row["examples"]) <= 5
    assert "draft" in row["meaning"]


def test_pairings_are_closed_on_every_rank(server: Serving) -> None:
    rows = server.items("/pairings", state="closed")
    assert len(rows) == server.get("/loads/1")["state"]["pairs_total"]
    row = next(row for row in rows if row["param"] == FUSED and row["rank"] == 0)
    assert Q_A in row["have"]
    assert (row["waits_for"], row["axis"]) == ([], 0)
    assert server.items("/pairings", state="open") == server.items("/pairings", state="held") == []


def test_findings_are_those_of_the_plan(server: Serving) -> None:
    rows = server.items("/findings")
    assert rows == server.get("/plan")["findings"]
    assert server.items("/findings", level="error") == []
    assert server.items("/findings", code=rows[0]["code"])


def test_kernels_agree_with_the_events(server: Serving, events: list[dict[str, Any]]) -> None:
    rows = {row["name"]: row for row in server.items("/kernels")}
    copies = [event for event in events if event["kind"] == "copied"]
    assert rows["copy"]["count"] == len(copies)
    assert rows["copy"]["bytes"] == sum(event["bytes"] for event in copies)
    assert rows["copy"]["p50_s"] <= rows["copy"]["p99_s"] <= rows["copy"]["max_s"]
    assert sum(count for _edge, count in rows["copy"]["buckets"]) == len(copies)


def test_timings_cover_planning_loading_and_ranks(server: Serving) -> None:
    assert {row["phase"] for row in server.items("/timings")} == {"planning", "loading", "rank"}


def test_ranks_say_what_is_planned_and_what_is_loaded(server: Serving) -> None:
    rows = server.items("/ranks")
    assert [(row["rank"], row["status"]) for row in rows] == [(0, "done"), (1, "done")]
    assert all(row["bytes_done"] == row["read_bytes"] for row in rows)


def test_the_plan_is_the_stored_one(server: Serving, model: Path) -> None:
    made = plan_document(make_plan(open_checkpoint(model), Layout(tp_size=2)))
    served = server.get("/plan", load=1)
    assert {**served, "seconds": None} == {**made, "seconds": None}


def test_another_layout_can_be_tried(server: Serving) -> None:
    assert server.get("/plan", tp_size=4, ep_size=2)["layout"]["ep_size"] == 2
    refused = server.get("/plan", tp_size=3)
    assert refused["verdict"] == "fail"
    assert any(one["code"].startswith("LS2") for one in refused["findings"])
    assert server.client.get("/plan", params={"tp_size": 0}).status_code == 422
    assert server.client.get("/plan", params={"tp_size": 2, "load": 1}).status_code == 409


def test_every_tensor_is_one_event(events: list[dict[str, Any]], model: Path) -> None:
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    bulk = [e for e in events if e["kind"] in ("renamed", "skipped")]
    named = [event["tensor"] for event in bulk if event["rank"] is None]
    assert sorted(named) == sorted(open_checkpoint(model).tensors)
    assert {event["kind"] for event in events} <= set(KINDS)


def test_folding_the_served_events_gives_the_served_state(
    server: Serving, events: list[dict[str, Any]]
) -> None:
    served = server.get("/loads/1")["state"]
    folded = fold(Event.from_json(event) for event in events).as_json(0.0)
    assert {key: served[key] for key in folded} == {
        **folded, "pairs_held": list(folded["pairs_held"])
    }  # fmt: skip


def test_events_by_kind_and_rank(server: Serving, events: list[dict[str, Any]]) -> None:
    for kind in ("renamed", "copied", "skipped"):
        expected = [event for event in events if event["kind"] == kind]
        assert server.items("/events", kind=kind, limit=37) == expected
    expected = [event for event in events if event["rank"] == 1]
    assert server.items("/events", rank=1, limit=1000) == expected


def test_events_of_a_parameter_include_the_renames_of_its_sources(
    server: Serving, events: list[dict[str, Any]]
) -> None:
    expected = [event for event in events if event["param"] == W13]
    assert server.items("/events", param=W13, limit=5) == expected
    renames = [event for event in expected if event["kind"] == "renamed"]
    assert server.items("/events", param=W13, kind="renamed") == renames


@pytest.mark.parametrize("exploded", [0, 1])
def test_events_read_the_same_before_and_after_they_are_exploded(
    server: Serving, events: list[dict[str, Any]], exploded: int
) -> None:
    with server.services.store.transaction() as db:
        db.execute("UPDATE load SET exploded = ?", (exploded,))
    assert server.items("/events", limit=1000) == events
    kinds = [event["kind"] for event in server.items("/events", kind="half_held")]
    assert kinds == ["half_held" for event in events if event["kind"] == "half_held"]
    assert server.items("/events", param=W13) == [e for e in events if e["param"] == W13]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/mapping?name=x&nmae=y", 422),
        ("/healthz?x=1", 422),
        ("/events?kin=copied", 422),
        ("/events?kind=nothing", 422),
        ("/events?limit=0", 422),
        ("/events?limit=1001", 422),
        ("/events?cursor=%00", 400),
        ("/events?cursor=WyJhIl0", 400),
        ("/parameters?cursor=Wy0xXQ", 400),
        ("/parameters?rank=2", 422),
        ("/mapping?name=x&rank=9", 422),
        ("/mapping", 422),
        ("/mapping/search?cursor=WyJhIiwgImIiXQ", 400),
        ("/loads/99", 404),
        ("/coverage?load=99", 404),
        ("/mapping?name=x&load=99", 404),
        ("/findings?code=x", 422),
        ("/nothing", 404),
    ],
)
def test_bad_requests_are_problems(server: Serving, path: str, status: int) -> None:
    answer = server.client.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert set(answer.json()) >= {"type", "title", "status", "detail"}


def test_an_unknown_parameter_is_named_with_those_that_exist(server: Serving) -> None:
    problem = server.client.get("/events?kin=copied").json()
    assert "kin" in problem["detail"]
    assert "kind" in problem["detail"]


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "../../etc/passwd", "a" * 400])
def test_hostile_names_are_only_text(server: Serving, name: str) -> None:
    answer = server.client.get("/mapping", params={"name": name})
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


def test_no_answer_holds_an_absolute_path(server: Serving, model: Path) -> None:
    folder = str(model.parent)
    for path in ("/loads", "/loads/1", "/events", "/plan", "/findings", f"/mapping?name={GATE}"):
        assert folder not in server.client.get(path).text


def test_pages_and_documentation_are_served_under_the_policy(server: Serving) -> None:
    for path in ("/ui/", "/ui/mapping", "/ui/loads", "/docs"):
        answer = server.client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert not FORBIDDEN.search(answer.text)
    assert server.client.get("/", follow_redirects=False).headers["location"] == "/ui/"
    assert server.client.get("/static-docs/swagger-ui.css").status_code == 200
    assert server.client.get("/static/api-docs.js").status_code == 200


def test_every_route_is_described_with_an_example(server: Serving) -> None:
    paths = server.get("/openapi.json")["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            assert operation["description"], (method, path)
            good = next(r for s, r in operation["responses"].items() if s.startswith("2"))
            if path not in ("/events/stream", "/reloads/{update}/events"):
                assert good["content"]["application/json"]["example"], (method, path)
    assert {"/mapping", "/events/stream", "/reload", "/readyz", "/coverage/{row}/{column}"} <= set(
        paths
    )


def test_the_plain_documentation_lists_every_route(server: Serving) -> None:
    openapi = server.get("/openapi.json")
    listed = plain_entries(openapi)
    assert all(path.replace("{", "{") in listed for path in openapi["paths"])


def test_the_guide_names_every_route_and_every_field_of_the_state(server: Serving) -> None:
    guide = (ROOT / "docs" / "http-api.md").read_text()
    paths = server.get("/openapi.json")["paths"]
    assert [path for path in paths if in_the_guide(path) not in guide] == []
    state = server.get("/loads/1")["state"]
    assert [field for field in state if not re.search(rf"\b{field}\b", guide)] == []
    slugs = {slug for source in (ROOT / "app").rglob("*.py") for slug in problem_slugs(source)}
    told = {slug for slug in slugs if f"`{slug}`" in guide or f"`{code_of(slug)}`" in guide}
    assert slugs - told == set()
    assert [code for code in STATUS if f"`{code}`" not in guide] == []


def in_the_guide(path: str) -> str:
    """The guide writes every id as {id}, a bucket's number as {n}."""
    return re.sub(r"\{(load|update)\}", "{id}", path).replace("{bucket}", "{n}")


def problem_slugs(source: Path) -> list[str]:
    return re.findall(r'Problem\(\s*\d+,\s*"([a-z-]+)"', source.read_text())
