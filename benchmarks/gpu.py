"""Loading into a GPU: the same bits as on the CPU, stable addresses, and gigabytes a second.

    PYTHONPATH=build/types python benchmarks/gpu.py        (after: make types)

Needs torch with CUDA and numpy; no server packages.
"""

import gzip
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from sparse import Entry, write_sparse

from loadscope.loader.checkpoint import Checkpoint, open_checkpoint
from loadscope.loader.events import Event, Recorder, discard
from loadscope.loader.execute import run_load
from loadscope.loader.fingerprints import fingerprint
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Options, Plan, make_plan
from loadscope.loader.state import fold
from loadscope.loader.topology import Layout

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))
PACK = TESTS / "data" / "headers" / "deepseek-v3.headers.json.gz"
LAYOUTS = (Layout(), Layout(tp_size=2), Layout(tp_size=2, ep_size=2), Layout(pp_size=2))
CHOICES: tuple[dict[str, Any], ...] = (
    {},
    {"draft": True},
    {"fuse_shared_experts": True},
    {"draft": True, "nvfp4_attention_fp8": True, "nextn_moe_fp8": True},
    {"deepgemm_bmm": True},
    {"quantization": "moe_wna16"},
    *({"platform": platform} for platform in ("hip", "hip-fnuz", "npu", "xpu", "musa", "cpu")),
)
COPY_BYTES = 1 << 30


def same_bits_as_cpu(folder: Path) -> tuple[int, int]:
    """Every tensor of every variant under every choice; returns (loads, tensors) compared.

    Layouts are gone through with the plain choice, the other choices on one rank.
    """
    from support.golden_checkpoint import VARIANTS, write_golden_checkpoint

    loads, compared = 0, 0
    for variant in VARIANTS:
        checkpoint = open_checkpoint(write_golden_checkpoint(variant, folder / variant))
        for choice in CHOICES:
            for layout in LAYOUTS if not choice else LAYOUTS[:1]:
                plan = make_plan(checkpoint, layout, Options(**choice))
                for rank in range(layout.world) if plan.verdict == "pass" else ():
                    loads += 1
                    compared += compare(plan, checkpoint, rank)
    return loads, compared


def compare(plan: Plan, checkpoint: Checkpoint, rank: int) -> int:
    """One rank on both devices; AssertionError names what differs."""
    cpu, gpu = (
        fingerprint(plan, checkpoint, ParameterStore(plan, rank, device))
        for device in ("cpu", "cuda")
    )
    for part in ("params", "derived", "scalars", "flags"):
        differ = [name for name in cpu[part] if cpu[part][name] != gpu[part].get(name)]
        assert not differ, (checkpoint.label, plan.options, plan.layout, rank, differ[:5])
    return len(cpu["params"]) + len(cpu["derived"])


def reload_keeps_addresses(folder: Path) -> int:
    checkpoint = open_checkpoint(folder / "v3-fp8-block")
    plan = make_plan(checkpoint)
    store = ParameterStore(plan, 0, "cuda")
    seen = []
    for _ in range(3):
        run_load(plan, checkpoint, {0: store}, discard)
        tensors = {**store.parameters, **store.derived}
        seen.append({name: tensor.data_ptr() for name, tensor in tensors.items()})
    assert seen[0] == seen[1] == seen[2]
    return len(seen[0])


def expand_v3(folder: Path) -> Checkpoint:
    pack = json.loads(gzip.decompress(PACK.read_bytes()))
    shards: dict[str, list[Entry]] = {
        file: [(name, e["dtype"], tuple(e["shape"])) for name, e in entries.items()]
        for file, entries in pack["files"].items()
    }
    return open_checkpoint(write_sparse(folder, pack["config"], shards))


def load_rate(checkpoint: Checkpoint, plan: Plan, rank: int) -> dict[str, float]:
    """One rank twice (the first load allocates), recording on."""
    store = ParameterStore(plan, rank, "cuda")
    for _ in range(2):
        events: list[Event] = []
        recorder = Recorder(1, events.append, time.time)
        recorder.emit("load_started", detail={})
        begun = time.perf_counter()
        run_load(plan, checkpoint, {rank: store}, recorder.emit)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begun
    state = fold(events).as_json(time.time())
    assert state["verdict"] == "pass", state["sentence"]
    return {"seconds": seconds, "bytes": state["bytes_done"], "derived": state["derived_done"]}


def pinned_limit() -> float:
    """Host to device from pinned memory, bytes a second."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    best = 0.0
    for _ in range(5):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        best = max(best, COPY_BYTES / (time.perf_counter() - begun))
    return best


def main() -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        loads, tensors = same_bits_as_cpu(folder)
        print(f"same bits as on the CPU: {tensors:,} tensors in {loads} loads")
        print(f"addresses after 3 loads: {reload_keeps_addresses(folder)} tensors unmoved")
        checkpoint = expand_v3(folder / "v3")
        limit = pinned_limit()
        print(f"pinned host to device: {limit / 1e9:.1f} GB/s\n")
        print("| DeepSeek-V3, one rank | GB | s | GB/s | of the limit |\n|---|---|---|---|---|")
        for layout in (Layout(tp_size=8, pp_size=8), Layout(tp_size=8, ep_size=8, pp_size=8)):
            plan = make_plan(checkpoint, layout)
            facts = load_rate(checkpoint, plan, layout.tp_size)
            rate = facts["bytes"] / facts["seconds"]
            name = f"tp {layout.tp_size} ep {layout.ep_size} pp {layout.pp_size}"
            print(
                f"| {name} | {facts['bytes'] / 1e9:.2f} | {facts['seconds']:.2f} "
                f"| {rate / 1e9:.2f} | {rate / limit:.2f} |"
            )


if __name__ == "__main__":
    main()
