"""Planning DeepSeek-V3 from its headers: names against a linear scan, plan and proof for tp 8.

python benchmarks/plan.py
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from table import show, spread

from loadscope.loader.checkpoint import Checkpoint, open_checkpoint
from loadscope.loader.families import build
from loadscope.loader.findings import Finding
from loadscope.loader.formats import choose, plain
from loadscope.loader.model import describe
from loadscope.loader.plan import make_plan
from loadscope.loader.resolve import collect, resolve
from loadscope.loader.schema import expand
from loadscope.loader.topology import Layout

PACKS = Path(__file__).parents[1] / "tests" / "data" / "headers"
REPEATS = 5


def linear_scan(names: list[str], experts: int, layers: int) -> int:
    """The yardstick: the ordered substring tests of a loader without a table look-up.

    Two stacked entries, then three entries per expert, until one is found in the name.
    """
    stacked = [("gate_proj", "gate_up_proj", 0), ("up_proj", "gate_up_proj", 1)]
    table = [
        (f"experts.{e}.{name}.", f"experts.{target}", shard, e)
        for e in range(experts)
        for name, target, shard in (
            ("gate_proj", "w13_", "w1"),
            ("down_proj", "w2_", "w2"),
            ("up_proj", "w13_", "w3"),
        )
    ]
    found = 0
    for name in names:
        parts = name.split(".")
        if len(parts) > 2 and parts[1] == "layers" and int(parts[2]) >= layers:
            continue
        for fragment, target, _shard in stacked:
            if fragment in name and "mlp.experts." not in name:
                found += bool(name.replace(fragment, target))
                break
        else:
            for fragment, target, _shard, _expert in table:
                if fragment in name:
                    found += bool(name.replace(fragment, target))
                    break
            else:
                found += 1
    return found


def resolve_names(checkpoint: Checkpoint) -> int:
    """The product's own way: tails looked up once, layers as a mask."""
    assert checkpoint.config is not None
    model, _findings = describe(checkpoint.config)
    assert model is not None
    form = choose(model.quantization, model.dtype)
    assert not isinstance(form, Finding)
    family = build(model, form, fuse_indexer=True, tie_head=False)
    schema = expand(family, form, plain.make(model.dtype))
    tails = collect(checkpoint.tensors.items()).values()
    resolve(tails, schema, model.layers)
    return sum(tail.routed.bit_count() for tail in tails)


def cpu_times(work: Callable[[], int], repeats: int = REPEATS) -> tuple[list[float], int]:
    times, result = [], 0
    for _ in range(repeats):
        begun = time.process_time()
        result = work()
        times.append(time.process_time() - begun)
    return times, result


def whole_plan(pack: str, tp_size: int) -> None:
    """In a fresh process: parse, plan and prove; CPU seconds and peak memory as JSON."""
    begun = time.process_time()
    plan = make_plan(open_checkpoint(PACKS / pack), Layout(tp_size=tp_size))
    used = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    stages = {name: round(seconds, 4) for name, seconds in plan.seconds.items()}
    print(json.dumps({"cpu_s": used, "peak": peak, "verdict": plan.verdict, "stages": stages}))


def main() -> None:
    pack = "deepseek-v3.headers.json.gz"
    checkpoint = open_checkpoint(PACKS / pack)
    names = list(checkpoint.tensors)
    ours, routed = cpu_times(lambda: resolve_names(checkpoint))
    theirs, found = cpu_times(lambda: linear_scan(names, experts=256, layers=61), repeats=3)
    assert routed == found, (routed, found)
    runs = []
    for _ in range(REPEATS):
        command = [sys.executable, __file__, "--whole", pack, "8"]
        runs.append(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))
    assert all(run["verdict"] == "pass" for run in runs)
    peak = max(run["peak"] for run in runs) / 1e6
    rows = [
        ["resolve 91,991 names (CPU)", spread(ours)],
        ["linear scan of the expert table, one rank (CPU)", spread(theirs)],
        ["ratio of the minima", f"{min(theirs) / min(ours):.1f} x"],
        ["parse + plan + proof, tp 8, all ranks (CPU)", spread([run["cpu_s"] for run in runs])],
        ["peak memory of that process", f"{peak:.0f} MB"],
        ["stages of the last run", json.dumps(runs[-1]["stages"])],
    ]
    show("Planning DeepSeek-V3", "python benchmarks/plan.py", ["what", "figure"], rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--whole"]:
        whole_plan(sys.argv[2], int(sys.argv[3]))
    else:
        main()
