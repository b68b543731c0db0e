"""Weights over HTTP: checksums by name, single tensors, and never a mixture of two versions."""

import json
import threading
from collections.abc import Callable, Iterator
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi import Depends
from support.serving import Serving, serving
from support.two_roles import write_two_roles
from support.updates import ATTN, O_PROJ, Files
from torch import Tensor

from loadscope.app import weights_reader
from loadscope.app.api import ROUTERS, weights
from loadscope.app.api.requests import refuse_unknown_query
from loadscope.app.problems import Problem
from loadscope.app.weight_values import MAX_VALUES, parse_slice, statistics, values_of
from loadscope.app.weights_reader import Held
from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.checksums import checksum, file_checksums, overall, tensor_checksum
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.topology import Layout

VARIANT = "v3-fp8-block"
NORM = "model.norm.weight"
EMBED = "model.embed_tokens.weight"
Q_A = ATTN + "q_a_proj.weight"
QKV_A = ATTN + "fused_qkv_a_proj_with_mqa.weight"
EXPERT = "model.layers.1.mlp.experts.6.up_proj.weight"
W13 = "model.layers.1.mlp.experts.w13_weight"
W_KC = ATTN + "w_kc"
DRAFT_NAME = "model.layers.3.eh_proj.weight"
TWO_RANKS = Layout(tp_size=2, ep_size=2)
PATIENCE_S = 60.0
ANSWERS = 8


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


def open_routes(server: Serving) -> Serving:
    if weights.router not in ROUTERS:
        app: Any = server.client.app
        app.include_router(weights.router, dependencies=[Depends(refuse_unknown_query)])
    return server


def started(files: Files, state: Path, variant: str = VARIANT) -> Any:
    """A server with all ranks of a golden checkpoint; reloads of the others are allowed."""
    return serving(state, files.folder(variant), roots=(files.root,), layout=TWO_RANKS, ranks="all")


@pytest.fixture(scope="module")
def server(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Shared: its weights are not to be changed."""
    with started(files, tmp_path_factory.mktemp("state")) as server:
        assert server.wait()["status"] == "finished"
        yield open_routes(server)


@pytest.fixture
def own(files: Files, tmp_path: Path) -> Iterator[Serving]:
    """A server whose weights may be changed."""
    with started(files, tmp_path) as server:
        assert server.wait()["status"] == "finished"
        yield open_routes(server)


def stores(server: Serving) -> dict[int, ParameterStore]:
    return dict(server.services.jobs.stores["target"])


def sums_of_files(files: Files, version: int = 1, algorithm: str = "xxh3-128") -> dict[str, str]:
    folder = files.folder(VARIANT, version)
    return dict(file_checksums(open_checkpoint(folder), algorithm=algorithm))


def problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert (answer.status_code, answer.json().get("code")) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("algorithm", ["xxh3-128", "sha256"])
def test_every_loaded_tensor_has_the_checksum_that_it_has_in_the_files(
    server: Serving, files: Files, algorithm: str
) -> None:
    found = server.get("/weights/checksums", algorithm=algorithm)
    expected = sums_of_files(files, algorithm=algorithm)
    tensors, reasons = found["tensors"], found["not_comparable"]
    assert tensors == {n: s for n, s in expected.items() if not n.startswith("model.layers.3.")}
    assert tensors.keys() | reasons.keys() == expected.keys()
    assert reasons[DRAFT_NAME].startswith("skipped: beyond_model")
    assert found["overall"] == overall(tensors, algorithm)
    assert (found["scope"], found["algorithm"]) == ("hf", algorithm)
    assert (found["version"], found["epoch"]) == ("u-1", stores(server)[0].epoch)


def test_the_digest_of_all_is_the_tag_and_who_knows_it_gets_no_body(own: Serving) -> None:
    first = own.client.get("/weights/checksums")
    tag = first.headers["etag"]
    assert tag == f'"{first.json()["overall"]}"'
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = own.client.get("/weights/checksums", headers={"If-None-Match": known})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == tag
    for other in ('"other"', tag.strip('"'), f"{tag}x"):
        answer = own.client.get("/weights/checksums", headers={"If-None-Match": other})
        assert answer.status_code == 200
    write(list(stores(own).values()), 7, "2")
    answer = own.client.get("/weights/checksums", headers={"If-None-Match": tag})
    assert answer.status_code == 200
    assert answer.headers["etag"] != tag
    assert answer.json()["version"] == "2"


def test_names_are_a_list_or_a_pattern_or_both(server: Serving, files: Files) -> None:
    every = sums_of_files(files)

    def asked(names: str) -> dict[str, str]:
        found = server.get("/weights/checksums", names=names)
        assert found["overall"] == overall(found["tensors"])
        tensors = found["tensors"]
        assert isinstance(tensors, dict)
        return tensors

    assert asked(f"{NORM},{Q_A}") == {name: every[name] for name in (NORM, Q_A)}
    assert asked(f" {NORM} , {NORM}") == {NORM: every[NORM]}
    experts = "model.layers.1.mlp.experts.*.up_proj.weight"
    assert len(asked(experts)) == 8
    assert asked(f"{experts},{NORM}") == {**asked(experts), NORM: every[NORM]}
    assert asked("model.layers.[12].input_layernorm.weight").keys() == {
        f"model.layers.{layer}.input_layernorm.weight" for layer in (1, 2)
    }
    converted = server.get("/weights/checksums", names=DRAFT_NAME)
    assert (converted["tensors"], list(converted["not_comparable"])) == ({}, [DRAFT_NAME])


@pytest.mark.parametrize("names", ["model.nrom.weight", f"{NORM},model.nrom.weight", "model.*x"])
def test_a_name_or_pattern_that_means_nothing_is_named(server: Serving, names: str) -> None:
    for scope in ("hf", "runtime"):
        answer = server.client.get("/weights/checksums", params={"names": names, "scope": scope})
        told = problem(answer, 404, "unknown_name")
        assert names.rpartition(",")[2] in told["detail"]
        assert ("nrom" not in names) or NORM in told["suggestions"]


def test_runtime_checksums_are_by_role_rank_and_parameter(server: Serving) -> None:
    found = server.get("/weights/checksums", scope="runtime")
    expected = {
        f"target/{rank}/{name}": tensor_checksum(tensor)
        for rank, store in stores(server).items()
        for name, tensor in {**store.parameters, **store.derived}.items()
    }
    assert found["tensors"] == expected
    assert (found["not_comparable"], found["overall"]) == ({}, overall(expected))
    some = server.get("/weights/checksums", scope="runtime", names=f"{QKV_A},*.w_kc")
    names = [QKV_A, *(f"model.layers.{layer}.self_attn.w_kc" for layer in range(3))]
    places = {f"target/{rank}/{name}" for rank in (0, 1) for name in names}
    assert some["tensors"] == {place: expected[place] for place in places}


def test_a_tensor_is_gathered_and_taken_out_of_its_parameter(server: Serving, files: Files) -> None:
    stored = files.weights(VARIANT)[Q_A]
    found = server.get(f"/weights/{Q_A}")
    assert (found["name"], found["kind"], found["role"]) == (Q_A, "tensor", "target")
    assert (found["dtype"], found["shape"]) == ("F8_E4M3", list(stored.shape))
    assert found["shards"] == [
        {
            "rank": rank,
            "param": QKV_A,
            "source_slice": [[0, 128], [0, 256]],
            "target_slice": [[0, 128], [0, 256]],
        }
        for rank in (0, 1)
    ]
    assert found["checksum"] == sums_of_files(files)[Q_A]
    assert (found["replicas_agree"], found["disagreeing"], found["reason"]) == (True, [], None)
    assert found["values"] == stored.flatten()[:8].double().tolist()
    assert (found["slice"], found["rank"]) == (None, None)
    assert (found["version"], found["epoch"]) == ("u-1", stores(server)[0].epoch)
    values = stored.double()
    stats = found["stats"]
    assert (stats["min"], stats["max"]) == (float(values.min()), float(values.max()))
    assert stats["mean"] == pytest.approx(float(values.mean()))
    assert stats["rms"] == pytest.approx(float(values.square().mean().sqrt()))
    assert (stats["nan"], stats["inf"]) == (0, 0)
    assert stats["zeros"] == int((values == 0).sum())


def test_a_tensor_that_ranks_share_is_put_together(server: Serving, files: Files) -> None:
    stored = files.weights(VARIANT)[O_PROJ]
    found = server.get(f"/weights/{O_PROJ}", slice="1:3,254:258")
    assert found["values"] == stored[1:3, 254:258].double().tolist()
    assert found["slice"] == [[1, 3], [254, 258]]
    assert [shard["rank"] for shard in found["shards"]] == [0, 1]
    assert found["checksum"] == sums_of_files(files)[O_PROJ]


def test_a_slice_is_read_as_numpy_reads_it(server: Serving, files: Files) -> None:
    stored = files.weights(VARIANT)[EXPERT].double()
    slices: dict[str, Tensor] = {
        "0:4,:8": stored[0:4, :8],
        "250:,-3:": stored[250:, -3:],
        " 1 : 3 , 7 ": stored[1:3, 7:8],
        "-1": stored[-1:],
        ":4": stored[:4],
        "254:999, :2": stored[254:999, :2],
    }
    for text, expected in slices.items():
        found = server.get(f"/weights/{EXPERT}", slice=text.replace(" : ", ":"))
        assert found["values"] == expected.tolist(), text
        assert found["stats"] == server.get(f"/weights/{EXPERT}")["stats"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0:4,:8,1", "found 3 dims; the shape is [256, 256]"),
        ("0:4,a:b", "dim 1: found 'a:b'; expected start:stop"),
        ("0:4,", "dim 1: found ''"),
        ("::2", "dim 0: found '::2'"),
        ("...", "dim 0: found '...'"),
        ("256", "dim 0: found index 256; it has 256 elements"),
        ("0,-257", "dim 1: found index -257; it has 256 elements"),
        ("8:4", "dim 0: 8:4 holds no element; it has 256"),
        ("0:4,300:", "dim 1: 300: holds no element; it has 256"),
        ("0:100", "dim 1: 256 elements of it make 25,600 values; one answer has at most 4,096"),
        ("1" * 16, "dim 0: found '1111111111111111'"),
    ],
)
def test_a_slice_that_cannot_be_is_refused_with_its_dim(
    server: Serving, text: str, told: str
) -> None:
    answer = server.client.get(f"/weights/{EXPERT}", params={"slice": text})
    found = problem(answer, 422, "invalid_request")
    assert told in found["detail"]
    assert found["errors"][0]["field"] == "slice"


def test_a_scalar_has_no_slice() -> None:
    with pytest.raises(Problem, match=r"found 1 dims; the shape is \[\]"):
        parse_slice("0", ())


def test_the_largest_slice_is_as_large_as_said() -> None:
    assert parse_slice(f":{MAX_VALUES}", (100_000,)) == ((0, MAX_VALUES),)
    with pytest.raises(Problem, match="dim 0"):
        parse_slice(f":{MAX_VALUES + 1}", (100_000,))


def test_parameters_and_derived_tensors_are_found_by_their_names(server: Serving) -> None:
    held = stores(server)
    for rank, asked in ((0, {}), (0, {"rank": 0}), (1, {"rank": 1})):
        found = server.get(f"/weights/{W13}", slice="2,0,:4", **asked)
        tensor = held[rank].parameters[W13]
        assert (found["kind"], found["rank"], found["role"]) == ("parameter", rank, "target")
        assert (found["shape"], found["dtype"]) == (list(tensor.shape), "F8_E4M3")
        assert found["values"] == tensor[2:3, 0:1, :4].double().tolist()
        assert found["checksum"] == tensor_checksum(tensor)
        assert found["replicas_agree"] is None
    derived = server.get(f"/weights/{W_KC}", rank=1)
    tensor = held[1].derived[W_KC]
    assert (derived["kind"], derived["shape"]) == ("derived", list(tensor.shape))
    assert derived["checksum"] == tensor_checksum(tensor)
    assert [shard["rank"] for shard in server.get(f"/weights/{W_KC}")["shards"]] == [0, 1]
    assert derived["shards"] == [
        {
            "rank": 1,
            "param": W_KC,
            "source_slice": None,
            "target_slice": [[0, size] for size in tensor.shape],
        }
    ]


def test_with_a_rank_a_name_means_what_that_rank_holds(server: Serving, files: Files) -> None:
    whole, piece = server.get(f"/weights/{O_PROJ}"), server.get(f"/weights/{O_PROJ}", rank=1)
    assert (whole["kind"], piece["kind"]) == ("tensor", "parameter")
    assert (whole["shape"], piece["shape"]) == ([256, 512], [256, 256])
    # a tensor that is no parameter: what can be had from this rank alone
    assert server.get(f"/weights/{Q_A}", rank=1)["checksum"] == sums_of_files(files)[Q_A]
    assert server.get(f"/weights/{EXPERT}", rank=1)["values"] is not None
    away = server.get(f"/weights/{EXPERT}", rank=0)
    assert (away["values"], away["shards"]) == (None, [])
    assert "rank 1 of 2 holds it" in away["reason"]
    part = server.get(f"/weights/{ATTN}kv_b_proj.weight", rank=0)
    assert part["kind"] == "parameter"
    gate = server.get("/weights/model.layers.0.mlp.gate_proj.weight", rank=0)
    assert gate["reason"] == "rank 0 holds a part of it; leave rank= out to gather it from all"
    assert [shard["rank"] for shard in gate["shards"]] == [0]


def test_what_cannot_be_had_back_has_a_reason_instead(
    server: Serving, files: Files, tmp_path: Path
) -> None:
    found = server.get(f"/weights/{DRAFT_NAME}", slice=":1,:1")
    assert (found["kind"], found["dtype"], found["shape"]) == ("tensor", "BF16", [256, 512])
    assert [found[key] for key in ("values", "stats", "checksum", "replicas_agree")] == [None] * 4
    assert found["reason"].startswith("skipped: beyond_model")
    answer = server.client.get(f"/weights/{DRAFT_NAME}", params={"slice": "0,0,0"})
    problem(answer, 422, "invalid_request")
    with started(files, tmp_path, "v32-fp8-block") as other:
        other.wait()
        name = f"{ATTN}indexer.wk.weight"
        found = open_routes(other).get(f"/weights/{name}")
        assert found["reason"] == "converted on its way: dequantise_block"
        assert [shard["rank"] for shard in found["shards"]] == [0, 1]
        told = other.get("/weights/checksums", names=f"{ATTN}indexer.*")
        assert told["not_comparable"][name] == found["reason"]


def test_replicas_that_differ_are_told(own: Serving) -> None:
    held = stores(own)
    row = held[1].parameters[QKV_A].view(torch.uint8)[0]
    row[0] ^= 0x80
    found = own.get(f"/weights/{Q_A}")
    assert found["replicas_agree"] is False
    assert found["disagreeing"] == [{"rank": 1, "param": QKV_A}]
    told = own.get("/weights/checksums")
    assert told["not_comparable"][Q_A].startswith("ranks disagree: rank 1 ")
    assert Q_A not in told["tensors"]


def test_numbers_that_json_does_not_have_are_text(own: Serving) -> None:
    for store in stores(own).values():
        store.parameters[NORM][:5] = torch.tensor([nan, inf, -inf, 0.0, -0.0])
        store.parameters[NORM][5:] = 2.0
    answer = own.client.get(f"/weights/{NORM}", params={"slice": ":6"})
    found = json.loads(answer.content, parse_constant=lambda word: pytest.fail(word))
    assert found["values"] == ["nan", "inf", "-inf", 0.0, -0.0, 2.0]
    stats = found["stats"]
    assert (stats["nan"], stats["inf"], stats["zeros"]) == (1, 2, 2)
    assert (stats["min"], stats["max"]) == (0.0, 2.0)
    for store in stores(own).values():
        store.parameters[NORM][:] = nan
    stats = own.get(f"/weights/{NORM}")["stats"]
    assert [stats[key] for key in ("min", "max", "mean", "rms")] == [None] * 4
    assert stats["nan"] == 256


def test_statistics_of_any_dtype_and_of_many_elements_are_right() -> None:
    many = torch.arange(-3, (1 << 20) + 4).to(torch.int32)
    found = statistics(many)
    assert (found["min"], found["max"], found["zeros"]) == (-3, (1 << 20) + 3, 1)
    assert found["mean"] == pytest.approx(float(many.double().mean()))
    assert found["rms"] == pytest.approx(float(many.double().square().mean().sqrt()))
    scale = torch.tensor([127, 130, 255], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    assert statistics(scale)["max"] == 8.0
    assert (statistics(scale)["nan"], values_of(scale, None)) == (1, [1.0, 8.0, "nan"])
    assert statistics(torch.zeros(0))["mean"] is None
    assert values_of(torch.tensor([True, False]), None) == [True, False]
    huge = torch.full((2,), 1e200, dtype=torch.float64)
    assert statistics(huge)["rms"] == "inf"


def test_an_unknown_name_gets_suggestions(server: Serving) -> None:
    misspelt = EXPERT.replace("up_proj", "up_prj")
    told = problem(server.client.get(f"/weights/{misspelt}"), 404, "unknown_name")
    assert EXPERT in told["suggestions"]
    assert misspelt in told["detail"]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/weights/checksums?role=draft", 404, "no_such_role"),
        (f"/weights/{NORM}?role=draft", 404, "no_such_role"),
        (f"/weights/{NORM}?rank=2", 422, "no_such_rank"),
        (f"/weights/{NORM}?rank=-1", 422, "invalid_request"),
        ("/weights/checksums?scope=all", 422, "invalid_request"),
        ("/weights/checksums?algorithm=md5", 422, "invalid_request"),
        ("/weights/checksums?names=", 422, "invalid_request"),
        ("/weights/checksums?name=x", 422, "unknown_parameter"),
        (f"/weights/{NORM}?slices=1", 422, "unknown_parameter"),
        ("/weights/" + "a" * 401, 422, "invalid_request"),
        ("/weights/%3Cimg%20src=x%3E", 404, "unknown_name"),
    ],
)
def test_bad_requests_are_problems(server: Serving, path: str, status: int, code: str) -> None:
    problem(server.client.get(path), status, code)


def test_both_roles_are_read_together_or_alone(tmp_path: Path) -> None:
    model = write_two_roles(tmp_path / "model")
    with serving(tmp_path / "state", model, roles=("target", "draft"), ranks="all") as server:
        server.wait_for(lambda row: row["role"] == "draft" and row["finished_t"] is not None)
        assert server.services.jobs.wait(PATIENCE_S)
        open_routes(server)
        every = dict(file_checksums(open_checkpoint(model)))
        both = server.get("/weights/checksums")
        alone = {role: server.get("/weights/checksums", role=role) for role in ("target", "draft")}
        assert both["tensors"] == {**alone["target"]["tensors"], **alone["draft"]["tensors"]}
        assert both["tensors"] == {name: every[name] for name in both["tensors"]}
        assert DRAFT_NAME in alone["draft"]["tensors"]
        assert NORM in alone["draft"]["not_comparable"]
        runtime = server.get("/weights/checksums", scope="runtime", names=NORM)["tensors"]
        assert runtime.keys() == {f"target/0/{NORM}"}
        assert server.get(f"/weights/{DRAFT_NAME}")["role"] == "draft"
        assert server.get(f"/weights/{DRAFT_NAME}", role="target")["values"] is None
        server.services.jobs.stores["draft"][0].version = "2"
        versions = {r: server.get("/weights/checksums", role=r)["version"] for r in alone}
        assert versions == {"target": "u-1", "draft": "2"}
        assert server.get("/weights/checksums")["version"] is None


PATHS = ("/weights/checksums", "/weights/checksums?scope=runtime", f"/weights/{NORM}")


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_read_while_a_store_is_written(own: Serving, path: str) -> None:
    store = stores(own)[1]
    store.begin("2")
    answer = own.client.get(path)
    problem(answer, 409, "weights_changing")
    assert answer.headers["retry-after"] == "1"
    store.finish()
    assert own.client.get(path).status_code == 200
    own.services.jobs.standing.is_writing = True
    problem(own.client.get(path), 409, "weights_changing")
    own.services.jobs.standing.is_writing = False
    assert own.client.get(path).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_poisoned_weights_are_not_read(own: Serving, path: str) -> None:
    store = stores(own)[0]
    store.begin("2")
    store.touch(NORM)
    store.poison()
    told = problem(own.client.get(path), 503, "poisoned")
    assert NORM in told["detail"]
    assert "reload to repair" in told["detail"]


@pytest.mark.parametrize("path", PATHS)
def test_without_weights_there_is_nothing_to_read(path: str, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        told = problem(open_routes(server).client.get(path), 409, "no_weights")
        assert "/readyz" in told["detail"]


Change = Callable[[Serving], None]


def write_one(server: Serving) -> None:
    store = stores(server)[1]
    store.begin("2")
    store.finish()


def begin_one(server: Serving) -> None:
    stores(server)[1].begin("2")


def mix_one(server: Serving) -> None:
    stores(server)[0].mix([])


def announce(server: Serving) -> None:
    server.services.jobs.standing.is_writing = True


def replace_one(server: Serving) -> None:
    held = server.services.jobs.stores["target"]
    other = ParameterStore(held[0].plan, 0)
    other.epoch, other.state = held[0].epoch, held[0].state
    held[0] = other


CHANGES = [write_one, begin_one, mix_one, announce, replace_one]


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_read_during_a_change_does_not_count(own: Serving, change: Change) -> None:
    jobs = own.services.jobs

    def look(held: Held) -> str:
        change(own)
        return "read"

    def fail(held: Held) -> str:
        change(own)
        raise KeyError("half written")

    for what in (look, fail):
        with pytest.raises(Problem) as caught:
            weights_reader.read(jobs, what)
        assert (caught.value.status, caught.value.slug) == (409, "weights-changing")
        jobs.standing.is_writing = False
        for store in stores(own).values():
            store.epoch += store.epoch % 2
            store.state = "ready"


def test_an_error_in_weights_that_stand_still_is_our_own(own: Serving) -> None:
    def fail(held: Held) -> str:
        raise KeyError("a mistake")

    with pytest.raises(KeyError, match="a mistake"):
        weights_reader.read(own.services.jobs, fail)


def write(held: list[ParameterStore], byte: int, version: str) -> None:
    """All ranks at once: none is even before all are whole."""
    for store in held:
        store.begin(version)
    for store in held:
        store.fill_pattern(byte)
    for store in held:
        store.finish()


def write_in_turn(server: Serving, byte: int, version: str) -> None:
    """As a load in place does: rank by rank, and the process says so meanwhile."""
    server.services.jobs.standing.is_writing = True
    for store in stores(server).values():
        store.begin(version)
        store.fill_pattern(byte)
        store.finish()
    server.services.jobs.standing.is_writing = False


class Readers:
    """Threads that read until each has enough answers; each answer of 200 is checked."""

    def __init__(self, server: Serving, check: Callable[[dict[str, Any]], None]) -> None:
        self.answered = threading.Event()
        self.statuses: list[int] = []
        self._server, self._check = server, check
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(2)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def are_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def end(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert self.are_done
        assert self._failures == []
        assert set(self.statuses) <= {200, 409}
        assert self.statuses.count(200) >= 2 * ANSWERS

    def _run(self, number: int) -> None:
        try:
            left = ANSWERS
            while left:
                scope = ("hf", "runtime")[(left + number) % 2]
                answer = self._server.client.get("/weights/checksums", params={"scope": scope})
                self.statuses.append(answer.status_code)
                if answer.status_code == 200:
                    self._check(answer.json())
                    left -= 1
                    self.answered.set()
                else:
                    problem(answer, 409, "weights_changing")
        except BaseException as failure:  # noqa: BLE001  edge of the thread: `end` tells it
            self._failures.append(failure)
            self.answered.set()


@pytest.mark.parametrize("in_turn", [False, True], ids=["all at once", "rank by rank"])
def test_every_answer_is_of_one_version_while_another_thread_writes(
    own: Serving, in_turn: bool
) -> None:
    held = stores(own)
    sizes = {
        f"target/{rank}/{name}": tensor.nbytes
        for rank, store in held.items()
        for name, tensor in store.parameters.items()
    }
    first = own.get("/weights/checksums")
    stored = {name: size_in_bytes(own, name) for name in first["tensors"]}

    def check(found: dict[str, Any]) -> None:
        if found["version"] == first["version"]:
            assert found["scope"] == "runtime" or found["tensors"] == first["tensors"]
            return
        byte = int(found["version"])
        of = sizes if found["scope"] == "runtime" else stored
        told = {name: digest for name, digest in found["tensors"].items() if name in of}
        assert told == {name: checksum(bytes([byte]) * size) for name, size in of.items()}

    readers = Readers(own, check)
    readers.start()
    version = 0
    while not readers.are_done:
        # one whole read at least between two writes, the other reader is somewhere in its own
        readers.answered.wait(PATIENCE_S)
        readers.answered.clear()
        version = version % 250 + 1
        if in_turn:
            write_in_turn(own, version, str(version))
        else:
            write(list(held.values()), version, str(version))
    readers.end()
    assert version > 2


def size_in_bytes(server: Serving, name: str) -> int:
    tensor = stores(server)[0].plan.tensors[name]
    return tensor.stop - tensor.start


@pytest.mark.parametrize("atomic", ["require", "off"])
def test_every_answer_is_of_one_version_while_updates_come(
    own: Serving, files: Files, atomic: str
) -> None:
    names = own.get("/weights/checksums")["tensors"].keys()
    versions = [{n: sums_of_files(files, version)[n] for n in names} for version in (1, 2)]
    assert versions[0] != versions[1]

    def check(found: dict[str, Any]) -> None:
        if found["scope"] == "hf":
            assert found["tensors"] in versions
            assert not any("disagree" in why for why in found["not_comparable"].values())

    readers = Readers(own, check)
    readers.start()
    count = 0
    while not readers.are_done:
        readers.answered.wait(PATIENCE_S)
        readers.answered.clear()
        count += 1
        source = {"type": "disk", "path": str(files.folder(VARIANT, 1 + count % 2))}
        body = {"source": source, "atomic": atomic, "wait_s": PATIENCE_S, "version": f"v{count}"}
        answer = own.client.post("/reload", json=body)
        assert answer.json()["state"] == "active", answer.text
    readers.end()
    assert own.get("/weights/checksums")["version"] == f"v{count}"


def test_the_routes_are_described_with_examples(server: Serving) -> None:
    paths = server.get("/openapi.json")["paths"]
    known = {"/weights/checksums": weights.CHECKSUMS, "/weights/{name}": weights.WEIGHT}
    for path, example in known.items():
        operation = paths[path]["get"]
        assert operation["description"]
        shown = operation["responses"]["200"]["content"]["application/json"]["example"]
        # what is null is left out of a description
        assert shown == {key: value for key, value in example.items() if value is not None}
        assert example.keys() == server.get(path.replace("{name}", Q_A)).keys()
        assert {"404", "409", "503"} <= operation["responses"].keys()
    assert "304" in paths["/weights/checksums"]["get"]["responses"]
    real = server.get(f"/weights/{Q_A}")
    assert real["stats"].keys() == weights.WEIGHT["stats"].keys()
    assert real["shards"][0].keys() == weights.WEIGHT["shards"][0].keys()
