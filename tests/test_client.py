"""The trainer's client: buckets, retries, refusals, and weights that equal what was sent."""

import json
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors import deserialize
from support.flaky import Fault, Flaky, Scripted, answer_lost, broken_stream, damaged, unreachable
from support.listening import Listening, listening
from support.updates import ATTN, KV_B, Files, OneBuffer, contents
from torch import Tensor

from loadscope.app.client import Client, UpdateRecord, UpdateRefused, Upload
from loadscope.app.client_packing import Bucket, pack
from loadscope.app.content_digest import parse_content_digest
from loadscope.loader.checksums import overall, tensor_checksum
from loadscope.loader.parameters import torch_dtype
from loadscope.loader.topology import Layout

VARIANT = "v3-fp8-block"
ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "docs" / "examples" / "push_weights.py"
README_URL = "http://127.0.0.1:8787"
NORM = "model.norm.weight"
SLOT_S = 20.0
ClientTo = Callable[..., Client]
KINDS = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.float8_e8m0fnu, torch.int8, torch.uint8, torch.int32, torch.bool,
)  # fmt: skip


def values(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(torch.float32).to(dtype)


def of_all_kinds() -> dict[str, Tensor]:
    found = {str(dtype): values(dtype, 3, 5) for dtype in KINDS}
    return {
        **found,
        "single": torch.tensor(2.5),
        "none": torch.empty(0, 4),
        "odd": values(KINDS[4], 7),
    }


def file_of(bucket: Bucket) -> bytes:
    return b"".join(bucket.blocks())


def same(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    """Names, dtypes, shapes and bytes."""
    as_bytes = [
        {n: (t.dtype, t.shape, tensor_checksum(t)) for n, t in w.items()} for w in (one, two)
    ]
    return as_bytes[0] == as_bytes[1]


def arrived(buckets: Iterator[Bucket]) -> dict[str, Tensor]:
    return {name: tensor for bucket in buckets for name, tensor in read(bucket).items()}


def read(bucket: Bucket) -> dict[str, Tensor]:
    """The file as the safetensors library reads it."""
    return {name: _tensor(**facts) for name, facts in deserialize(file_of(bucket))}


def _tensor(dtype: str, shape: list[int], data: bytes) -> Tensor:
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0)
    return raw.view(torch_dtype(dtype)).reshape(shape)


def test_the_client_needs_no_server_packages() -> None:
    code = (
        "import sys, loadscope.app.client; "
        "print([n for n in ('fastapi', 'starlette', 'uvicorn') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize("bucket_bytes", [1, 100, 1 << 20])
def test_buckets_are_safetensors_files_with_the_same_tensors(bucket_bytes: int) -> None:
    weights = of_all_kinds()
    assert same(arrived(pack(weights, bucket_bytes, "xxh3-128")), weights)


def test_a_tensor_of_any_strides_arrives_row_by_row() -> None:
    base = values(torch.bfloat16, 6, 8)
    weights = {"t": base.t(), "cut": base[1:5, 2::3], "wide": base[0].expand(4, 8), "n": -base}
    assert same(arrived(pack(weights, 1 << 20, "xxh3-128")), weights)


def test_a_tensor_that_needs_a_gradient_arrives() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3))
    assert same(arrived(pack({"w": weight}, 100, "xxh3-128")), {"w": weight.detach()})


def test_tensors_are_aligned_in_the_file_whatever_their_order() -> None:
    (bucket,) = pack(of_all_kinds(), 1 << 20, "xxh3-128")
    text = file_of(bucket)
    size = int.from_bytes(text[:8], "little")
    header = json.loads(text[8 : 8 + size])
    begins = {name: 8 + size + entry["data_offsets"][0] for name, entry in header.items()}
    weights = of_all_kinds()
    assert [n for n, begin in begins.items() if begin % weights[n].element_size()] == []


def test_buckets_hold_what_was_asked_and_a_larger_tensor_has_its_own() -> None:
    weights = {str(n): torch.zeros(size) for n, size in enumerate([10, 10, 5, 30, 1, 24, 1])}
    buckets = [sorted(read(b)) for b in pack(weights, 100, "xxh3-128")]
    assert buckets == [["0", "1", "2"], ["3"], ["4", "5"], ["6"]]


@pytest.mark.parametrize("algorithm", ["xxh3-128", "sha256"])
def test_digest_and_checksums_are_of_the_bytes_that_are_sent(algorithm: Any) -> None:
    weights = of_all_kinds()
    (bucket,) = pack(weights, 1 << 20, algorithm)
    digest = parse_content_digest(bucket.digest)
    digest.update(file_of(bucket))
    digest.check()
    assert bucket.nbytes == len(file_of(bucket))
    assert bucket.checksums == {n: tensor_checksum(t, algorithm) for n, t in weights.items()}


def test_blocks_are_neither_tiny_nor_huge() -> None:
    mib = 1 << 20
    weights = {"big": torch.zeros(5 * mib, dtype=torch.uint8)}
    weights |= {str(n): torch.zeros(100) for n in range(5000)}
    (bucket,) = pack(weights, 1 << 30, "xxh3-128")
    sizes = [len(block) for block in bucket.blocks()]
    assert sum(sizes) == bucket.nbytes
    assert all(mib <= size < 2 * mib for size in sizes[:-1])


def test_memory_that_a_sender_uses_again_is_copied_in_time() -> None:
    weights = {name: t for name, t in of_all_kinds().items() if t.numel()}
    lent = OneBuffer(weights).lend(list(weights))
    assert same(arrived(pack(lent, 100, "xxh3-128")), weights)


@pytest.mark.parametrize(("overlap", "most"), [(False, 1), (True, 2)])
def test_no_more_buckets_than_promised_are_in_memory(
    overlap: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: weakref.WeakSet[Bucket] = weakref.WeakSet()
    counted: list[int] = []
    make = Bucket.__init__

    def counting(self: Bucket, *arguments: Any) -> None:
        make(self, *arguments)
        alive.add(self)
        counted.append(len(alive))

    monkeypatch.setattr(Bucket, "__init__", counting)
    receipt = {"bucket": 0, "received": 1}
    answers = [httpx.Response(200, json=receipt) for _ in range(10)]
    wire = Scripted(httpx.Response(202, json=OPENED), *answers, httpx.Response(200, json=RECORD))
    with client_of(wire).update(bucket_bytes=4, overlap=overlap) as upload:
        upload.send((str(n), torch.zeros(1)) for n in range(10))
    assert (max(counted), len(counted)) == (most, 10)


OPENED = {"id": "u-2", "state": "receiving", "version": "128"}
RECORD = {"id": "u-2", "state": "active", "weights": "new", "version": "128", "ended_t": 1.0}
RECEIPT = {"bucket": 0, "repeated": False, "tensors": 1, "received": 1, "expected": 2}


def client_of(transport: httpx.BaseTransport, **settings: Any) -> Client:
    return Client("http://127.0.0.1:8787", transport=transport, backoff_s=0.001, **settings)


def problem(status: int, code: str, **more: Any) -> httpx.Response:
    body = {"type": f"urn:loadscope:{code}", "code": code, "detail": "why", **more}
    return httpx.Response(status, json=body, headers={"content-type": "application/problem+json"})


def sent(wire: Scripted, method: str) -> list[httpx.Request]:
    return [request for request in wire.seen if request.method == method]


def test_a_bucket_is_sent_again_with_the_same_number_digest_and_bytes() -> None:
    wire = Scripted(
        httpx.Response(202, json=OPENED),
        httpx.ConnectError("refused"),
        problem(503, "starting"),
        httpx.ReadTimeout("slow"),
        problem(422, "checksum_mismatch"),
        httpx.Response(200, json=RECEIPT),
        httpx.Response(200, json=RECORD),
    )
    with client_of(wire).update() as upload:
        (receipt,) = upload.send({"w": torch.ones(3)})
    tries = sent(wire, "PUT")
    assert len(tries) == 5
    assert len({(one.url.path, one.headers["content-digest"], one.content) for one in tries}) == 1
    assert (receipt.received, receipt.document) == (1, RECEIPT)


def test_tries_are_bounded_and_the_server_is_named() -> None:
    wire = Scripted(*[httpx.ConnectError("refused")] * 3)
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:8787: no answer.*3 times.*refused"):
        client_of(wire, retries=2).current()
    assert len(wire.seen) == 3


@pytest.mark.parametrize(
    ("status", "code"),
    [(409, "bucket_conflict"), (422, "shape_mismatch"), (507, "insufficient_memory")],
)
def test_what_will_not_pass_is_not_sent_again(status: int, code: str) -> None:
    facts = {"names": ["w"], "expected": "[4]", "got": "[3]", "bucket": 0, "fix": "gather it first"}
    wire = Scripted(
        httpx.Response(202, json=OPENED),
        problem(status, code, **facts),
        httpx.Response(200, json=RECORD),
    )
    with pytest.raises(UpdateRefused) as caught, client_of(wire).update() as upload:
        upload.send({"w": torch.ones(3)})
    refused = caught.value
    assert (refused.status, refused.code, refused.message) == (status, code, "why")
    assert (refused.names, refused.expected, refused.got) == (("w",), "[4]", "[3]")
    assert (refused.bucket, refused.fix) == (0, "gather it first")
    assert str(refused) == f"{code}: why; gather it first"
    assert len(sent(wire, "PUT")) == 1


def test_an_update_is_opened_once_however_often_it_is_asked_for() -> None:
    wire = Scripted(
        httpx.ReadTimeout("slow"),
        httpx.Response(202, json=OPENED),
        httpx.Response(200, json=RECORD),
    )
    with client_of(wire).update(version="128", unknown="ignore:optimizer.*"):
        pass
    tries = sent(wire, "POST")
    assert len({one.headers["idempotency-key"] for one in tries}) == 1
    body = json.loads(tries[-1].content)
    assert body["source"] == {"type": "upload"}
    assert (body["version"], body["unknown"]) == ("128", "ignore:optimizer.*")
    assert "expect_current" not in body


def test_what_a_proxy_answers_is_told_as_it_is() -> None:
    page = httpx.Response(404, text="<html>", headers={"content-type": "text/html"})
    with pytest.raises(UpdateRefused, match="http_404: Not Found"):
        client_of(Scripted(page)).current()


def test_the_key_goes_with_every_request() -> None:
    wire = Scripted(httpx.Response(200, json={"current": None, "state": "empty", "roles": {}}))
    current = client_of(wire, api_key="0123456789").current()
    assert wire.seen[0].headers["authorization"] == "Bearer 0123456789"
    assert (current.version, current.state) == (None, "empty")


def test_fields_that_the_client_does_not_know_are_kept() -> None:
    record = UpdateRecord.of({**RECORD, "from_the_future": 7})
    assert (record.version, record.document["from_the_future"]) == ("128", 7)
    assert record.plan is None


def test_a_second_one_waits_for_the_slot_as_long_as_it_is_told() -> None:
    busy = problem(409, "reload_in_progress", update="u-1")
    ended = httpx.Response(200, json={**RECORD, "id": "u-1"})
    wire = Scripted(busy, ended, httpx.Response(202, json=OPENED), httpx.Response(200, json=RECORD))
    with client_of(wire).update(wait_for_slot_s=60) as upload:
        assert upload.id == "u-2"
    with pytest.raises(UpdateRefused) as caught, client_of(Scripted(busy)).update():
        pass
    assert (caught.value.code, caught.value.update) == ("reload_in_progress", "u-1")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


@pytest.fixture
def server(files: Files, tmp_path: Path) -> Iterator[Listening]:
    """With version 1 loaded, ready for others."""
    with listening(tmp_path, files.folder(VARIANT), roots=(files.root,)) as server:
        with Client(server.url) as client:
            assert client.wait("u-1").state == "active"
        yield server


@pytest.fixture
def client_to(server: Listening) -> Iterator[ClientTo]:
    """Clients over connections on which these faults happen."""
    with ExitStack() as clients:

        def make(*faults: tuple[str, Fault]) -> Client:
            transport = Flaky(httpx.HTTPTransport(), faults)
            return clients.enter_context(Client(server.url, transport=transport, backoff_s=0.001))

        yield make


def weights_in(server: Listening) -> dict[str, bytes]:
    return contents(server.live)


def fresh(files: Files, version: int) -> dict[str, bytes]:
    return contents(files.loaded(VARIANT, Layout(), 0, None, version))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("bucket_bytes", [1 << 30, 200_000])
def test_what_was_sent_is_what_stands_in_memory(
    server: Listening, client_to: ClientTo, files: Files, bucket_bytes: int, overlap: bool
) -> None:
    weights = files.weights(VARIANT, 2)
    names = sorted(weights)
    client = client_to()
    with client.update(
        version="128", bucket_bytes=bucket_bytes, overlap=overlap, wait_for_slot_s=SLOT_S
    ) as upload:
        upload.send({name: weights[name] for name in names[:50]})
        upload.send((name, weights[name]) for name in names[50:])
        record = upload.commit()
    assert (record.state, record.version, record.weights) == ("active", "128", "new")
    assert record.verify["overall"] == upload.overall == overall(upload.checksums)
    assert record.verify["checked"] == len(weights)
    assert record.verify["loaded_equal"] is True
    assert record.buckets["received"] == upload.buckets
    assert record.changed_pct is not None
    assert record.changed_pct > 50
    assert weights_in(server) == fresh(files, 2)
    assert client.current().version == "128"


def test_broken_connections_change_nothing_of_the_result(
    server: Listening, client_to: ClientTo, files: Files
) -> None:
    weights = files.weights(VARIANT, 2)
    client = client_to(
        ("POST /reload", answer_lost),
        ("buckets/0", answer_lost),
        ("buckets/1", unreachable),
        ("buckets/2", damaged),
        ("buckets/2", damaged),
        ("/commit", answer_lost),
        ("GET /reloads", unreachable),
        ("/events", broken_stream),
    )
    with client.update(version="128", bucket_bytes=1 << 20, wait_for_slot_s=SLOT_S) as upload:
        upload.send(weights)
        record = upload.commit()
    assert record.state == "active"
    assert record.buckets["repeated"] == 1
    assert record.buckets["received"] == upload.buckets
    assert upload.id == "u-2"
    assert weights_in(server) == fresh(files, 2)


def test_checksums_of_what_stands_in_memory_are_those_that_were_sent(
    client_to: ClientTo, files: Files
) -> None:
    weights, client = files.weights(VARIANT, 2), client_to()
    with client.update(wait_for_slot_s=SLOT_S) as upload:
        upload.send(weights)
        upload.commit()
    found = client.checksums()
    assert found.tensors.items() <= upload.checksums.items()
    # the draft layer is not served here
    assert {name.split(".")[2] for name in upload.checksums.keys() - found.tensors.keys()} == {"3"}
    assert client.checksums([NORM]).tensors == {NORM: upload.checksums[NORM]}


def test_a_missing_half_is_named_and_the_old_weights_stay(
    server: Listening, client_to: ClientTo, files: Files
) -> None:
    half = KV_B + "weight_scale_inv"
    weights = {n: t for n, t in files.weights(VARIANT, 2).items() if n != half}
    client = client_to()
    with client.update(version="128", wait_for_slot_s=SLOT_S) as upload:
        upload.send(weights)
        with pytest.raises(UpdateRefused) as caught:
            upload.commit()
    assert (caught.value.code, caught.value.status) == ("open_group", 422)
    assert caught.value.names == (half,)
    assert caught.value.update == upload.id
    assert client.record(upload.id).weights == "unchanged"
    assert client.current().version == "u-1"
    assert weights_in(server) == fresh(files, 1)


def test_a_failure_after_the_commit_is_an_exception_too(client_to: ClientTo, files: Files) -> None:
    weights = {n: t.clone() for n, t in files.weights(VARIANT, 2).items()}
    weights[NORM].fill_(float("nan"))
    client = client_to()
    with client.update(wait_for_slot_s=SLOT_S) as upload:
        upload.send(weights)
        with pytest.raises(UpdateRefused) as caught:
            upload.commit()
    refused = caught.value
    assert (refused.code, refused.names) == ("non_finite", (NORM,))
    assert (refused.status, refused.weights, refused.update) == (None, "unchanged", upload.id)


def interrupted(upload: Upload, norm: Tensor) -> None:
    upload.send({NORM: norm})
    raise ZeroDivisionError


def test_leaving_by_an_exception_cancels(client_to: ClientTo, files: Files) -> None:
    client = client_to()
    with (
        pytest.raises(ZeroDivisionError),
        client.update(version="128", wait_for_slot_s=SLOT_S) as upload,
    ):
        interrupted(upload, files.weights(VARIANT, 2)[NORM])
    assert client.record(upload.id).state == "cancelled"
    assert client.current().pending is None


def test_leaving_without_a_commit_cancels(client_to: ClientTo) -> None:
    client = client_to()
    with client.update(wait_for_slot_s=SLOT_S) as upload:
        pass
    assert client.record(upload.id).state == "cancelled"


def test_a_name_that_was_sent_is_not_sent_again(client_to: ClientTo, files: Files) -> None:
    norm = files.weights(VARIANT, 2)[NORM]
    with client_to().update(wait_for_slot_s=SLOT_S) as upload:
        upload.send({NORM: norm})
        with pytest.raises(ValueError, match=rf"{NORM}: was sent before"):
            upload.send({NORM: norm})
        with pytest.raises(ValueError, match="once"):
            upload.send([(KV_B + "weight", norm), (KV_B + "weight", norm)])
        assert upload.buckets == 1


def test_a_refused_tensor_may_come_again_in_the_right_shape(
    server: Listening, client_to: ClientTo, files: Files
) -> None:
    weights = dict(files.weights(VARIANT, 2))
    norm = weights.pop(NORM)
    with client_to().update(wait_for_slot_s=SLOT_S) as upload:
        with pytest.raises(UpdateRefused) as caught:
            upload.send({NORM: norm[:-1]})
        assert (caught.value.code, caught.value.names) == ("shape_mismatch", (NORM,))
        upload.send({NORM: norm, **weights})
        assert upload.commit().state == "active"
    assert weights_in(server) == fresh(files, 2)


def test_what_is_refused_while_the_next_bucket_is_packed_is_an_exception_too(
    client_to: ClientTo, files: Files
) -> None:
    weights = dict(files.weights(VARIANT, 2))
    wrong = {NORM: weights.pop(NORM)[:-1]}
    with client_to().update(bucket_bytes=1, overlap=True, wait_for_slot_s=SLOT_S) as upload:
        with pytest.raises(UpdateRefused, match="shape_mismatch"):
            upload.send({**wrong, **weights})
        assert upload.buckets == 0


def test_a_part_of_the_weights_is_enough(client_to: ClientTo, files: Files) -> None:
    part = {n: t for n, t in files.weights(VARIANT, 2).items() if n.startswith(ATTN)}
    with client_to().update(scope="partial", wait_for_slot_s=SLOT_S) as upload:
        upload.send(part)
        record = upload.commit()
    assert (record.state, record.document["scope"]) == ("active", "partial")
    assert record.verify["checked"] == len(part)


def test_compare_and_set(client_to: ClientTo) -> None:
    client = client_to()
    with (
        pytest.raises(UpdateRefused) as caught,
        client.update(expect_current="127", wait_for_slot_s=SLOT_S),
    ):
        pass
    assert (caught.value.code, caught.value.status) == ("version_conflict", 412)
    assert (caught.value.expected, caught.value.got) == ("127", "u-1")


def test_a_rollback_brings_the_version_before(
    server: Listening, client_to: ClientTo, files: Files
) -> None:
    client = client_to()
    folder = str(files.folder(VARIANT, 2))
    record = client.reload(folder, version="128", verify="loaded", wait_for_slot_s=SLOT_S)
    assert (record.state, record.can_roll_back) == ("active", True)
    slot = threading.Event()
    while not slot.wait(0.01) and client.current().pending is not None:
        pass
    assert client.rollback(record.id).state == "rolled_back"
    assert client.current().version == "u-1"
    assert [(row.version, row.by) for row in client.versions()] == [
        ("u-1", "rollback"), ("128", "commit"), ("u-1", "commit"),
    ]  # fmt: skip
    assert weights_in(server) == fresh(files, 1)


def test_a_dry_run_says_what_would_happen(client_to: ClientTo, files: Files) -> None:
    client = client_to()
    assert client.dry_run(str(files.folder(VARIANT, 2)))["would_switch"] is True
    assert client.current().version == "u-1"
    with pytest.raises(UpdateRefused, match="path_not_allowed"):
        client.dry_run("/etc")


def test_waiting_ends_with_the_time_that_was_given(client_to: ClientTo) -> None:
    client = client_to()
    with client.update(wait_for_slot_s=SLOT_S) as upload:
        record = client.wait(upload.id, 0.1)
        assert (record.state, record.has_ended) == ("receiving", False)
        assert client.cancel(upload.id).state == "cancelled"
    assert client.wait(upload.id).has_ended


def test_events_go_on_where_they_broke_off(client_to: ClientTo, files: Files) -> None:
    plain = client_to()
    folder = str(files.folder(VARIANT, 2))
    record = plain.reload(folder, wait_for_slot_s=SLOT_S)
    whole = list(plain.events(record.id))
    broken = client_to(("/events", broken_stream), ("/events", unreachable))
    assert list(broken.events(record.id)) == whole
    assert [event.kind for event in whole][-1] == "done"
    assert whole[-1].detail["state"] == "active"
    half = whole[len(whole) // 2].id
    assert [e.id for e in plain.events(record.id, after=half)] == [
        e.id for e in whole if e.id > half
    ]


def test_two_trainers_take_turns(client_to: ClientTo, files: Files) -> None:
    weights = files.weights(VARIANT, 2)
    ended: list[str] = []

    def push() -> None:
        with client_to().update(wait_for_slot_s=60) as upload:
            upload.send(weights)
            ended.append(upload.commit().state)

    trainers = [threading.Thread(target=push) for _ in range(2)]
    for one in trainers:
        one.start()
    for one in trainers:
        one.join()
    assert ended == ["active", "active"]


def readme_example(url: str) -> str:
    section = (ROOT / "README.md").read_text().partition("## Push weights from a trainer")[2]
    return section.partition("```python\n")[2].partition("```")[0].replace(README_URL, url)


def test_the_trainer_of_the_readme_works(
    server: Listening, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [(1, files.weights(VARIANT, 2)), (2, files.weights(VARIANT).items())]
    exec(readme_example(server.url), {"train": lambda: steps})
    first, second = (line.split() for line in capsys.readouterr().out.splitlines())
    assert (first[:2], first[3]) == (["step-1", "active"], "True")
    assert (second[:2], second[3]) == (["step-2", "active"], "True")
    assert weights_in(server) == fresh(files, 2)


def test_the_example_trainer_pushes_fails_and_takes_back(server: Listening, files: Files) -> None:
    folder = str(files.folder(VARIANT))
    command = [sys.executable, str(EXAMPLE), "--url", server.url, "--checkpoint", folder]
    done = subprocess.run(
        [*command, "--steps", "2", "--bucket-mb", "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    one, two, half, served, back = done.stdout.splitlines()
    assert re.match(r"step-1: 239 tensors, 8\.8 MB in \d+ buckets, .* changed; .* equal$", one)
    assert re.match(r"step-2: .* equal$", two)
    assert re.match(r"without .*kv_a_proj_with_mqa.*: open_group, ", half)
    assert (served, back) == ("still served: step-2", "step-2 taken back; served: step-1")
