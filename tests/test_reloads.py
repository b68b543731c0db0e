"""Updates over HTTP: whole, in any buckets, verified, versioned; every failure in a named state."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.pushing import Pusher, body_of, digest_of
from support.serving import Serving, serving
from support.updates import ATTN, KV_B, Files, addresses, changed, contents, pieces

from loadscope.app.updates import execution
from loadscope.app.updates.refusal import Refusal
from loadscope.loader.checksums import overall, tensor_checksum
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.staging import Staging
from loadscope.loader.topology import Layout

VARIANT = "v3-fp8-block"
PATIENCE_S = 60.0
NORM, MISSPELT = "model.norm.weight", "model.nrom.weight"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


@pytest.fixture
def server(files: Files, tmp_path: Path) -> Iterator[Serving]:
    """With version 1 loaded, ready for others."""
    with serving(tmp_path, files.folder(VARIANT), roots=(files.root,)) as server:
        server.wait()
        yield server


def live(server: Serving) -> ParameterStore:
    return server.services.jobs.stores["target"][0]


def holds(server: Serving, files: Files, version: int) -> bool:
    """Whether the live weights are those of a fresh load of this version, byte by byte."""
    return contents(live(server)) == contents(fresh(files, version))


def fresh(files: Files, version: int) -> ParameterStore:
    return files.loaded(VARIANT, Layout(), 0, None, version)


def push(server: Serving, files: Files, count: int = 5, **fields: Any) -> Pusher:
    """All of version 2 in shuffled buckets, not committed yet."""
    pusher = Pusher(server, **fields)
    weights = files.weights(VARIANT, 2)
    pusher.send(weights, pieces(list(weights), seed=count, count=count))
    return pusher


def current(server: Serving) -> str:
    return str(server.get("/versions/current")["current"]["version"])


def reload(server: Serving, path: Path, **fields: Any) -> Any:
    body = {"source": {"type": "disk", "path": str(path)}, "wait_s": PATIENCE_S, **fields}
    return server.client.post("/reload", json=body)


@pytest.mark.parametrize("count", [1, 7, 40])
def test_an_upload_in_any_buckets_equals_a_fresh_load(
    server: Serving, files: Files, count: int
) -> None:
    before = addresses(live(server))
    answer = push(server, files, count, version="128", expect_current="u-1").commit()
    assert answer.status_code == 200
    record = answer.json()
    assert (record["state"], record["weights"], record["atomicity"]) == ("active", "new", "staged")
    assert record["plan"]["tensors_received"] == record["plan"]["tensors_expected"]
    assert record["plan"]["groups"]["open"] == []
    assert (current(server), record["previous"]) == ("128", "u-1")
    assert addresses(live(server)) == before
    assert holds(server, files, 2)


def test_a_missing_half_ends_the_update_with_its_name(server: Serving, files: Files) -> None:
    weights = files.weights(VARIANT, 2)
    pusher = Pusher(server, version="128")
    pusher.send(weights, [[name for name in weights if name != KV_B + "weight_scale_inv"]])
    answer = pusher.commit()
    assert (answer.status_code, answer.json()["code"]) == (422, "open_group")
    assert answer.json()["names"] == [KV_B + "weight_scale_inv"]
    record = pusher.record()
    assert (record["state"], record["weights"]) == ("failed", "unchanged")
    assert record["plan"]["groups"]["open"][0]["have"] == [KV_B + "weight"]
    assert (current(server), holds(server, files, 1)) == ("u-1", True)
    assert server.get("/readyz")["ready"]


def test_a_missing_tensor_without_a_partner_is_named_too(server: Serving, files: Files) -> None:
    weights = files.weights(VARIANT, 2)
    pusher = Pusher(server)
    pusher.send(weights, [[name for name in weights if name != NORM]])
    answer = pusher.commit()
    assert (answer.status_code, answer.json()["code"]) == (422, "missing_tensor")
    assert answer.json()["names"] == [NORM]
    assert holds(server, files, 1)


def test_the_same_bucket_again_changes_nothing_another_one_is_refused(
    server: Serving, files: Files
) -> None:
    weights = files.weights(VARIANT, 2)
    pusher = Pusher(server)
    body = body_of(weights, [NORM])
    assert pusher.put(3, body).json()["repeated"] is False
    assert pusher.put(3, body).json()["repeated"] is True
    answer = pusher.put(3, body_of(weights, [KV_B + "weight"]))
    assert (answer.status_code, answer.json()["code"]) == (409, "bucket_conflict")
    again = pusher.put(4, body)
    assert (again.status_code, again.json()["code"]) == (409, "duplicate_tensor")
    assert pusher.record()["buckets"]["repeated"] == 1
    rest = [name for name in weights if name != NORM]
    assert pusher.put(5, body_of(weights, rest)).status_code == 200
    assert pusher.commit().json()["state"] == "active"
    assert holds(server, files, 2)


def wrong_bodies(files: Files) -> dict[str, tuple[bytes, int, str]]:
    weights = files.weights(VARIANT)
    norm = weights[NORM]
    whole = body_of(weights, [NORM])
    return {
        "shape": (body_of({NORM: norm[:-1]}, [NORM]), 422, "shape_mismatch"),
        "dtype": (body_of({NORM: norm.to(torch.float64)}, [NORM]), 422, "dtype_mismatch"),
        "name": (
            body_of({"model.nrom.weight": norm}, ["model.nrom.weight"]),
            422,
            "unknown_tensor",
        ),
        "cut": (whole[:-3], 422, "truncated"),
        "no file": (b"\x00" * 5, 422, "truncated"),
    }


@pytest.mark.parametrize("fault", ["shape", "dtype", "name", "cut", "no file"])
def test_a_wrong_bucket_is_refused_and_leaves_nothing(
    server: Serving, files: Files, fault: str
) -> None:
    body, status, code = wrong_bodies(files)[fault]
    pusher = Pusher(server, version="128")
    answer = pusher.put(0, body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json()["bucket"] == 0
    assert answer.json()["fix"]
    record = pusher.record()
    assert (record["state"], record["buckets"]["received"]) == ("receiving", 0)
    weights = files.weights(VARIANT, 2)
    pusher.send(weights, [list(weights)])
    assert pusher.commit().json()["state"] == "active"
    assert holds(server, files, 2)


def test_a_body_that_is_not_what_its_digest_says_is_refused(server: Serving, files: Files) -> None:
    pusher = Pusher(server)
    body = body_of(files.weights(VARIANT), [NORM])
    answer = pusher.put(0, body, content_digest=digest_of(body + b"x"))
    assert (answer.status_code, answer.json()["code"]) == (422, "checksum_mismatch")
    none = pusher.put(0, body, content_digest="")
    assert (none.status_code, none.json()["code"]) == (400, "invalid_request")
    assert pusher.cancel().json()["state"] == "cancelled"


def test_one_writer_and_whoever_comes_second_is_told(server: Serving, files: Files) -> None:
    first = Pusher(server, version="128")
    answer = Pusher(server, version="129").opened
    assert (answer.status_code, answer.json()["code"]) == (409, "reload_in_progress")
    assert answer.json()["update"] == first.id
    assert "retry-after" in answer.headers
    assert reload(server, files.folder(VARIANT)).status_code == 409
    assert first.cancel().json()["state"] == "cancelled"
    assert reload(server, files.folder(VARIANT)).json()["state"] == "active"


def test_versions_are_compared_and_set(server: Serving, files: Files) -> None:
    for fields in ({"expect_current": "127"}, {"version": "u-1"}):
        answer = reload(server, files.folder(VARIANT, 2), **fields)
        assert (answer.status_code, answer.json()["code"]) == (412, "version_conflict")
    assert server.get("/reloads")["total"] == 1
    forced = reload(server, files.folder(VARIANT, 2), version="u-1", force=True)
    assert forced.json()["state"] == "active"
    unnamed = reload(server, files.folder(VARIANT), expect_current="u-1").json()
    assert unnamed["version"] == unnamed["id"]
    history = [(row["version"], row["by"]) for row in server.items("/versions")]
    assert history == [(unnamed["id"], "commit"), ("u-1", "commit"), ("u-1", "commit")]


def test_the_same_key_and_body_give_the_same_update(server: Serving, files: Files) -> None:
    body = {"source": {"type": "disk", "path": str(files.folder(VARIANT, 2))}, "version": "128"}
    key = {"idempotency-key": "step-128"}
    first = server.client.post("/reload", json={**body, "wait_s": PATIENCE_S}, headers=key)
    again = server.client.post("/reload", json={**body, "wait_s": PATIENCE_S}, headers=key)
    assert first.json()["id"] == again.json()["id"]
    assert server.get("/reloads")["total"] == 2
    other = server.client.post("/reload", json={**body, "version": "129"}, headers=key)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")


def test_a_commit_without_buckets_says_so(server: Serving, files: Files) -> None:
    answer = Pusher(server, scope="partial").commit()
    assert (answer.status_code, answer.json()["code"]) == (422, "missing_tensor")
    assert holds(server, files, 1)


def test_buckets_after_the_end_are_refused(server: Serving, files: Files) -> None:
    pusher = push(server, files)
    assert pusher.commit().json()["state"] == "active"
    answer = pusher.put(90, body_of(files.weights(VARIANT), [NORM]))
    assert (answer.status_code, answer.json()["code"]) == (409, "not_receiving")
    assert pusher.commit().json()["state"] == "active"
    unknown = server.client.post("/reloads/u-99/commit")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_reload")


def manifest_of(weights: dict[str, torch.Tensor]) -> dict[str, str]:
    return {name: tensor_checksum(tensor, "xxh3-128") for name, tensor in weights.items()}


@pytest.mark.parametrize("level", ["bytes", "loaded"])
def test_the_senders_manifest_is_compared(server: Serving, files: Files, level: str) -> None:
    sums = manifest_of(files.weights(VARIANT, 2))
    verify = {"level": level, "checksums": sums, "overall": overall(sums, "xxh3-128")}
    record = push(server, files, version="128").commit(verify=verify).json()
    assert record["state"] == "active"
    assert record["verify"]["overall"] == verify["overall"]
    assert record["verify"]["checked"] == len(sums)
    assert record["verify"]["loaded_equal"] is (True if level == "loaded" else None)


def test_a_tensor_that_is_not_the_senders_ends_the_update(server: Serving, files: Files) -> None:
    sums = manifest_of(files.weights(VARIANT, 2))
    sums[NORM] = "0" * 32
    answer = push(server, files).commit(verify={"checksums": sums})
    record = answer.json()
    assert (record["state"], record["weights"]) == ("failed", "unchanged")
    assert record["failure"]["code"] == "checksum_mismatch"
    assert record["verify"]["mismatched"] == [NORM]
    assert record["failure"]["expected"] == "0" * 32
    assert holds(server, files, 1)


def test_a_rollback_reads_no_file(server: Serving, files: Files, tmp_path: Path) -> None:
    record = push(server, files, version="128").commit().json()
    assert record["can_roll_back"]
    answer = server.client.post(f"/reloads/{record['id']}/rollback")
    assert (answer.json()["state"], answer.json()["weights"]) == ("rolled_back", "rolled_back")
    assert (current(server), holds(server, files, 1)) == ("u-1", True)
    again = server.client.post(f"/reloads/{record['id']}/rollback")
    assert (again.status_code, again.json()["code"]) == (409, "nothing_to_roll_back")


def test_a_partial_update_changes_what_came_and_derives_what_follows(
    server: Serving, files: Files
) -> None:
    weights, before = files.weights(VARIANT, 2), contents(live(server))
    pusher = Pusher(server, scope="partial", version="128")
    names = [name for name in weights if name.startswith(ATTN)]
    pusher.send(weights, [names[:3], names[3:]])
    record = pusher.commit().json()
    assert record["state"] == "active"
    role = record["roles"]["target"]
    assert (role["tensors"], role["derived_refreshed"], role["derived_kept"]) == (len(names), 2, 4)
    after, new = contents(live(server)), contents(fresh(files, 2))
    touched = {name for name in after if after[name] != before[name]}
    assert touched
    assert all(name.startswith(ATTN) for name in touched)
    assert all(after[name] == new[name] for name in after if name.startswith(ATTN))


def test_a_partial_update_brings_whole_groups(server: Serving, files: Files) -> None:
    pusher = Pusher(server, scope="partial")
    pusher.send(files.weights(VARIANT, 2), [[ATTN + "q_a_proj.weight"]])
    answer = pusher.commit()
    assert (answer.status_code, answer.json()["code"]) == (422, "open_group")
    assert ATTN + "kv_a_proj_with_mqa.weight" in answer.json()["names"]


def refuse_read_back(*_arguments: object) -> None:
    raise Refusal("finalize_failed", "read back, one tensor differs", names=[NORM])


def test_a_failure_after_the_switch_brings_the_old_weights_back(
    server: Serving, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "read_back", refuse_read_back)
    record = push(server, files, version="128").commit(verify={"level": "loaded"}).json()
    assert (record["state"], record["weights"]) == ("rolled_back", "rolled_back")
    assert NORM in record["touched"]["names"]["target"]["0"]
    assert (current(server), holds(server, files, 1)) == ("u-1", True)


def test_old_weights_that_cannot_be_brought_back_are_read_by_nobody(
    server: Serving, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_staging: Staging) -> None:
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(execution, "read_back", refuse_read_back)
        patch.setattr(Staging, "swap_back", broken)
        record = push(server, files).commit(verify={"level": "loaded"}).json()
    assert (record["state"], record["weights"]) == ("poisoned", "poisoned")
    assert server.client.get("/readyz").status_code == 503
    assert server.get("/versions/current")["current"] is None
    assert reload(server, files.folder(VARIANT)).json()["state"] == "active"
    assert server.get("/readyz")["ready"]
    assert holds(server, files, 1)


def test_names_that_no_rule_knows_may_be_ignored_by_name(server: Serving, files: Files) -> None:
    weights = dict(files.weights(VARIANT, 2))
    weights["optimizer.step"] = torch.ones(1)
    pusher = Pusher(server, unknown="ignore:optimizer.*", version="128")
    pusher.send(weights, [list(weights)])
    record = pusher.commit().json()
    assert record["state"] == "active"
    assert record["plan"]["ignored"]["optimizer.*"] == 1


def test_weights_that_are_not_finite_are_refused(server: Serving, files: Files) -> None:
    scale, norm = KV_B + "weight_scale_inv", NORM
    for name, value in ((scale, float("nan")), (norm, float("inf"))):
        weights = {k: v.clone() for k, v in changed(files.weights(VARIANT)).items()}
        weights[name].view(-1)[0] = value
        pusher = Pusher(server)
        pusher.send(weights, [list(weights)])
        record = pusher.commit().json()
        assert (record["state"], record["weights"]) == ("failed", "unchanged")
        assert record["failure"]["code"] == "non_finite"
        assert record["failure"]["names"] == [name]
    assert holds(server, files, 1)


def test_a_dry_run_changes_nothing(server: Serving, files: Files) -> None:
    before = (live(server).epoch, server.get("/reloads")["total"], server.get("/loads")["total"])
    found = reload(server, files.folder(VARIANT, 2), dry_run=True).json()
    assert found["would_switch"]
    assert found["atomicity"] == "staged"
    assert found["needs_bytes"]["staged"] >= found["plan"]["bytes"] > 0
    after = (live(server).epoch, server.get("/reloads")["total"], server.get("/loads")["total"])
    assert after == before


@pytest.mark.parametrize("how", ["staged", "validated_in_place", "none"])
def test_atomicity_is_chosen_by_what_fits(files: Files, tmp_path: Path, how: str) -> None:
    budget = None if how == "staged" else 1000
    fields = {"verify": {"level": "none"}} if how == "none" else {}
    folder = files.folder(VARIANT)
    with serving(tmp_path, folder, roots=(files.root,), memory_budget_bytes=budget) as server:
        server.wait()
        record = reload(server, files.folder(VARIANT, 2), **fields).json()
        assert (record["state"], record["atomicity"]) == ("active", how)
        assert holds(server, files, 2)
        if how != "staged":
            answer = reload(server, files.folder(VARIANT), atomic="require", wait_s=0)
            assert (answer.status_code, answer.json()["code"]) == (507, "insufficient_memory")
            assert not record["can_roll_back"]


def test_an_upload_that_stands_still_is_given_up(files: Files, tmp_path: Path) -> None:
    folder = files.folder(VARIANT)
    with serving(tmp_path, folder, roots=(files.root,), receive_timeout_s=0.2) as server:
        server.wait()
        pusher = Pusher(server)
        assert server.services.jobs.wait_for(int(pusher.id[2:]), PATIENCE_S)
        record = pusher.record()
        assert (record["state"], record["failure"]["code"]) == ("failed", "receive_timeout")
        assert "receive_timeout_s = 0.2" in record["failure"]["message"]
        late = Pusher(server, deadline_s=0.1)
        assert server.services.jobs.wait_for(int(late.id[2:]), PATIENCE_S)
        assert late.record()["failure"]["code"] in ("deadline_exceeded", "receive_timeout")
        assert holds(server, files, 1)


def test_every_change_leaves_an_audit_line(server: Serving, files: Files, tmp_path: Path) -> None:
    push(server, files, version="128").commit()
    server.services.jobs.wait()
    lines = [json.loads(text) for text in (tmp_path / "audit.jsonl").read_text().splitlines()]
    told = [(line["what"], line["version"]) for line in lines if line["version"] == "128"]
    assert told[0] == ("reload", "128")
    assert sorted(told[1:]) == [("commit", "128"), ("ended", "128")]
    (_first, ended) = (line for line in lines if line["what"] == "ended")
    assert (ended["outcome"], bool(ended["digest"])) == ("active", True)
    assert lines[-1]["who"]["address"]
    assert str(files.root) not in (tmp_path / "audit.jsonl").read_text()


def test_twenty_updates_leave_addresses_and_memory_alone(server: Serving, files: Files) -> None:
    before, held = addresses(live(server)), set()
    for step in range(20):
        version = 2 - step % 2
        record = reload(server, files.folder(VARIANT, version), version=f"step-{step}").json()
        assert record["state"] == "active"
        assert holds(server, files, version)
        held.add(server.services.jobs.keeper.held_bytes)
    assert addresses(live(server)) == before
    assert len(held) == 1


def test_the_feed_tells_the_whole_story(server: Serving, files: Files) -> None:
    pusher = push(server, files, version="128")
    pusher.commit()
    text = server.client.get(pusher.opened.json()["events"]).text
    kinds = [line.removeprefix("event: ") for line in text.splitlines() if line[:6] == "event:"]
    assert kinds[0] == "state"
    assert kinds[-1] == "done"
    assert kinds.count("bucket") == 5
    states = [line for line in text.splitlines() if '"state":"' in line]
    assert ['"state":"switching"' in line for line in states].count(True) == 1
    unknown = server.client.get("/reloads/u-99/events")
    assert unknown.status_code == 404
