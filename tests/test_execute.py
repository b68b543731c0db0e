"""Running a plan: failures are named, buffers are reused, memory is bounded, addresses stay."""

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.deepseek_tensors import Spec, checkpoint_specs
from support.golden_checkpoint import VARIANTS, write_golden_checkpoint
from support.readers import ChangingReader, spoiling
from support.safetensors_files import expand_pack, write_checkpoint

from loadscope.loader.checkpoint import Checkpoint, open_checkpoint
from loadscope.loader.control import Control
from loadscope.loader.events import Event, Recorder
from loadscope.loader.execute import open_reader, run_load
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Plan, make_plan
from loadscope.loader.rank_load import ReaderFactory
from loadscope.loader.read import Loaded, Reader, ReadError
from loadscope.loader.state import LoadState, fold
from loadscope.loader.topology import Layout

HEADERS = Path(__file__).parent / "data" / "headers"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("execute") / "v32"
    write_golden_checkpoint("v32-fp8-block", path)
    return path


def broken_at(number: int) -> ReaderFactory:
    """Fails like a disk at the n-th chunk."""

    def open_it(folder: Path, names: list[str], device: torch.device) -> Reader:
        count = iter(range(1_000_000))

        def fail(loaded: Loaded) -> Loaded:
            if next(count) == number:
                raise ReadError("model-00002-of-00003.safetensors: bytes 0 to 9: I/O error")
            return loaded

        return ChangingReader(open_reader(folder, names, device), fail, lambda _loaded: None)

    return open_it


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = a.contiguous().reshape(-1), b.contiguous().reshape(-1)
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def load(
    plan: Plan, checkpoint: Checkpoint, stores: dict[int, ParameterStore], **options: object
) -> tuple[LoadState, list[Event]]:
    events: list[Event] = []
    recorder = Recorder(1, events.append, lambda: 0.0)
    recorder.emit("load_started", detail={})
    run_load(plan, checkpoint, stores, recorder.emit, **options)  # type: ignore[arg-type]
    return fold(events), events


def zeros(spec: Spec) -> bytes:
    return bytes(spec.num_bytes)


def stores_of(plan: Plan) -> dict[int, ParameterStore]:
    return {rank: ParameterStore(plan, rank) for rank in range(plan.layout.world)}


def test_a_reader_that_reuses_its_buffers_loses_nothing(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    plan = make_plan(checkpoint, Layout(tp_size=2))
    clean, spoiled = stores_of(plan), stores_of(plan)
    load(plan, checkpoint, clean)
    state, _events = load(plan, checkpoint, spoiled, make_reader=spoiling())
    assert state.status == "finished"
    for rank, store in clean.items():
        for name, tensor in {**store.parameters, **store.derived}.items():
            other = {**spoiled[rank].parameters, **spoiled[rank].derived}[name]
            assert same_bits(tensor, other), name


def test_several_ranks_load_one_after_another_into_separate_stores(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    plan = make_plan(checkpoint, Layout(tp_size=2, ep_size=2, pp_size=2))
    stores = stores_of(plan)
    state, events = load(plan, checkpoint, stores)
    assert [store.state for store in stores.values()] == ["ready"] * 4
    ranks = [event.rank for event in events if event.kind == "copied"]
    assert ranks == sorted(ranks)
    assert state.as_json(0.0)["verdict"] == "pass"


def test_a_failed_read_names_file_tensor_and_rule_and_poisons(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    plan = make_plan(checkpoint)
    stores = stores_of(plan)
    state, events = load(plan, checkpoint, stores, make_reader=broken_at(5))
    failed = next(event for event in events if event.kind == "failed")
    assert failed.reason is not None
    assert "I/O error" in failed.reason
    assert failed.tensor in plan.tensors
    assert failed.rule in {source.rule for source in plan.sources}
    assert failed.detail is not None
    assert failed.detail["file"] in {shard.name for shard in plan.shards}
    assert stores[0].state == "poisoned"
    assert stores[0].touched
    assert set(failed.detail["touched_names"]) <= set(stores[0].parameters)
    assert state.as_json(0.0)["verdict"] == "fail"


def test_a_failure_before_the_first_byte_leaves_the_store_as_it_was(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    plan = make_plan(checkpoint)
    stores = stores_of(plan)
    load(plan, checkpoint, stores)
    epoch = stores[0].epoch
    state, _events = load(plan, checkpoint, stores, make_reader=broken_at(0))
    assert state.status == "failed"
    assert stores[0].state == "ready"
    assert stores[0].touched == []
    assert stores[0].epoch % 2 == 0
    assert stores[0].epoch > epoch


def test_ranks_that_hold_different_weights_are_all_poisoned(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    plan = make_plan(checkpoint, Layout(tp_size=2))
    stores = stores_of(plan)
    load(plan, checkpoint, stores)
    first_rank_whole = iter((open_reader, broken_at(0)))
    state, events = load(
        plan, checkpoint, stores, make_reader=lambda *told: next(first_rank_whole)(*told)
    )
    failed = next(event for event in events if event.kind == "failed")
    assert failed.rank == 1
    assert failed.detail is not None
    assert failed.detail["touched"] == len(stores[0].parameters)
    assert stores[1].touched == []
    assert [store.state for store in stores.values()] == ["poisoned", "poisoned"]
    assert [store.epoch % 2 for store in stores.values()] == [0, 0]
    assert state.as_json(0.0)["store"]["state"] == "poisoned"


def test_a_file_that_shrank_after_planning_is_named_with_its_range(
    folder: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "shrunk"
    shutil.copytree(folder, copy)
    checkpoint = open_checkpoint(copy)
    plan = make_plan(checkpoint)
    victim = copy / plan.shards[1].name
    with victim.open("r+b") as file:
        file.truncate(victim.stat().st_size // 3)
    state, _events = load(plan, checkpoint, stores_of(plan))
    assert state.failure is not None
    assert state.failure["file"] == victim.name
    assert "expected bytes up to" in state.failure["message"]
    assert str(tmp_path) not in json.dumps(state.failure)


def test_a_cancelled_load_ends_as_failed_and_says_so(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    plan = make_plan(checkpoint)
    control = Control()
    control.cancel()
    state, _events = load(plan, checkpoint, stores_of(plan), control=control)
    assert state.failure is not None
    assert "cancelled" in state.failure["message"]


def test_a_refused_plan_touches_nothing(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    plan = make_plan(checkpoint)
    stores = stores_of(plan)
    load(plan, checkpoint, stores)
    bad = make_plan(checkpoint, Layout(tp_size=3))
    before = {name: tensor.clone() for name, tensor in stores[0].parameters.items()}
    state, events = load(bad, checkpoint, stores)
    assert state.status == "refused"
    assert not [event for event in events if event.kind in ("read", "copied")]
    assert all(same_bits(before[n], t) for n, t in stores[0].parameters.items())


def test_a_reload_writes_parameters_and_derived_tensors_in_place(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    plan = make_plan(checkpoint)
    stores = stores_of(plan)
    load(plan, checkpoint, stores)
    tensors = {**stores[0].parameters, **stores[0].derived}
    before = {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in tensors.items()}
    for tensor in stores[0].derived.values():
        tensor.zero_()
    load(plan, checkpoint, stores)
    after = {**stores[0].parameters, **stores[0].derived}
    assert {n: (t.data_ptr(), t.stride()) for n, t in after.items()} == before
    assert all(tensor.abs().sum() > 0 for tensor in stores[0].derived.values())


def test_a_reload_does_not_keep_a_scale_that_the_new_checkpoint_leaves_out(tmp_path: Path) -> None:
    config = VARIANTS["v3-fp8-block"]
    specs = checkpoint_specs(dict(config))
    scale_spec = Spec("model.layers.1.self_attn.k_proj.k_scale", "F32", ())
    with_scale, without = (
        write_checkpoint(tmp_path / name, config, {"a.safetensors": shard}, zeros)
        for name, shard in (("with", [*specs, scale_spec]), ("without", specs))
    )
    checkpoint = open_checkpoint(with_scale)
    plan = make_plan(checkpoint)
    stores = stores_of(plan)
    scale = stores[0].parameters["model.layers.1.self_attn.attn_mqa.k_scale"]
    load(plan, checkpoint, stores)
    assert scale.item() != -1.0
    checkpoint = open_checkpoint(without)
    load(make_plan(checkpoint), checkpoint, stores)
    assert scale.item() == -1.0


def test_what_the_fold_counts_is_what_the_plan_promised(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    plan = make_plan(checkpoint, Layout(tp_size=2))
    state, _events = load(plan, checkpoint, stores_of(plan))
    facts = state.as_json(0.0)
    for counted, promised in (
        ("bytes_done", "bytes_total"),
        ("elements_written", "elements_total"),
        ("parameters_full", "parameters_total"),
        ("tensors_done", "tensors_total"),
        ("steps_done", "steps_total"),
        ("derived_done", "derived_total"),
        ("pairs_closed", "pairs_total"),
    ):
        assert facts[counted] == facts[promised], counted
    grid = state.grid()
    assert grid is not None
    assert all(cell["written"] == cell["total"] for cell in grid["cells"])


MEASURE_PEAK = """
import json, sys, threading, time
from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.events import discard
from loadscope.loader.execute import run_load
from loadscope.loader.parameters import ParameterStore, parameter_bytes
from loadscope.loader.plan import Options, make_plan
import torch
def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return sum(int(l.split()[1]) for l in lines if l.startswith(("RssAnon", "RssShmem"))) * 1024
checkpoint = open_checkpoint(sys.argv[1])
plan = make_plan(checkpoint, options=Options(overrides=(("num_hidden_layers", "2"),)))
assert plan.verdict == "pass", [f.message for f in plan.findings]
before, peak, done = anonymous(), 0, threading.Event()
def watch():
    global peak
    while not done.wait(0.005):
        peak = max(peak, anonymous())
thread = threading.Thread(target=watch); thread.start()
store = ParameterStore(plan, 0)
run_load(plan, checkpoint, {0: store}, discard)
done.set(); thread.join()
size = parameter_bytes(plan, 0)
print(json.dumps({"peak": peak - before, "parameters": size, "state": store.state}))
"""

BUDGET_BYTES = 512 << 20


def test_peak_memory_is_the_parameters_and_a_fixed_budget(tmp_path: Path) -> None:
    pack = json.loads(gzip.decompress((HEADERS / "deepseek-v2-lite.headers.json.gz").read_bytes()))
    expand_pack(pack, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE_PEAK, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["state"] == "ready"
    assert facts["parameters"] > 2_000_000_000
    assert facts["peak"] <= facts["parameters"] + BUDGET_BYTES
