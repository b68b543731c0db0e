"""Planning published checkpoints from their headers: names against a linear scan, plan and proof.

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
from loadscope.loader.plan import make_plan
from loadscope.loader.topology import Layout

PACKS = Path(__file__).parents[1] / "tests" / "data" / "headers"
CHECKPOINTS = ("deepseek-v3", "kimi-k2-instruct", "deepseek-r1-0528-fp4")
REPEATS = 5
SCANS = 3  # the yardstick takes seconds
TP_SIZE = 8


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


def scan_times(checkpoint: Checkpoint) -> tuple[list[float], int]:
    """Seconds of the yardstick, and how many names it found."""
    assert checkpoint.config is not None
    names = list(checkpoint.tensors)
    experts, layers = (
        checkpoint.config["n_routed_experts"],
        checkpoint.config["num_hidden_layers"],
    )
    return timed(lambda: linear_scan(names, experts, layers), SCANS)


def timed(work: Callable[[], int], repeats: int) -> tuple[list[float], int]:
    times, result = [], 0
    for _ in range(repeats):
        begun = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - begun)
    return times, result


def resolve_times(checkpoint: Checkpoint) -> tuple[list[float], int]:
    """Seconds of a plan's own way, tables included, and how many names it found."""
    times, found = [], 0
    for _ in range(REPEATS):
        plan = make_plan(checkpoint, Layout())
        times.append(plan.seconds["describe"] + plan.seconds["resolve"])
        found = sum(tail.routed.bit_count() for tail in plan.tails)
    return times, found


def whole_plan(pack: str) -> None:
    """In a fresh process: parse, plan and prove; CPU seconds and peak memory as JSON."""
    begun = time.process_time()
    plan = make_plan(open_checkpoint(path_of(pack)), Layout(tp_size=TP_SIZE))
    used = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    stages = {name: round(seconds, 4) for name, seconds in plan.seconds.items()}
    print(json.dumps({"cpu_s": used, "peak": peak, "verdict": plan.verdict, "stages": stages}))


def path_of(pack: str) -> Path:
    return PACKS / f"{pack}.headers.json.gz"


def figures(pack: str) -> dict[str, str]:
    """One column of the table."""
    checkpoint = open_checkpoint(path_of(pack))
    ours, routed = resolve_times(checkpoint)
    theirs, found = scan_times(checkpoint)
    assert routed == found, (pack, routed, found)
    command = [sys.executable, __file__, "--whole", pack]
    outputs = [subprocess.run(command, capture_output=True, check=True) for _ in range(REPEATS)]
    runs = [json.loads(output.stdout) for output in outputs]
    assert all(run["verdict"] == "pass" for run in runs), pack
    return {
        "names": f"{len(checkpoint.tensors):,}",
        "tables and names resolved (wall)": spread(ours),
        "linear scan of the expert table, one rank (wall)": spread(theirs, digits=2),
        "ratio of the minima": f"{min(theirs) / min(ours):.1f} x",
        f"parse + plan + proof, tp {TP_SIZE}, all ranks (CPU)": spread([r["cpu_s"] for r in runs]),
        "peak memory of that process": f"{max(run['peak'] for run in runs) / 1e6:.0f} MB",
        "stages of the last": stages_text(runs[-1]["stages"]),
    }


def stages_text(stages: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.3f}" for name, seconds in stages.items())


def main() -> None:
    columns = [figures(pack) for pack in CHECKPOINTS]
    rows = [[what, *(column[what] for column in columns)] for what in columns[0]]
    title = "Planning published checkpoints"
    show(title, "python benchmarks/plan.py", ["what", *CHECKPOINTS], rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--whole"]:
        whole_plan(sys.argv[2])
    else:
        main()
