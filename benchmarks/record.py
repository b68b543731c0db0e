"""What recording a load costs: the server's recorder and store against a load nobody watches.

    python benchmarks/record.py

Recorder CPU = emit calls in the load's thread (calls x measured cost) + the CPU of the live thread
that folds, encodes and stores. Wall: median over interleaved pairs.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from sparse import write_v3
from table import show, spread

from loadscope.app.live import Live
from loadscope.app.store import Store
from loadscope.loader.checkpoint import Checkpoint, open_checkpoint
from loadscope.loader.control import Control
from loadscope.loader.events import Event, Recorder, discard
from loadscope.loader.execute import run_load
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Plan, make_plan

PAIRS = 15
SMALL = {
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "intermediate_size": 128,
    "num_hidden_layers": 27,
    "first_k_dense_replace": 1,
    "n_routed_experts": 256,
    "vocab_size": 512,
}
BIG = {
    "hidden_size": 4096,
    "moe_intermediate_size": 64,
    "intermediate_size": 16384,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 2,
    "n_routed_experts": 256,
    "vocab_size": 32768,
}


class Watched:
    """A load under the server's recorder; counts emits and the live thread's CPU."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder, retention_bytes=512 << 20)
        self.live = Live(self.store, lambda _tick: None)
        self.live.start()
        self.clock_id = time.pthread_getcpuclockid(self.live._thread.ident or 0)

    def run(
        self, plan: Plan, checkpoint: Checkpoint, stores: dict[int, ParameterStore]
    ) -> tuple[int, float]:
        """Emit calls of one load, and the live thread's CPU seconds for it."""
        load = self.store.create_load("load", checkpoint.label, checkpoint.label, time.time())
        before = time.clock_gettime(self.clock_id)
        recorder = self.live.begin(load, Control())
        self.live.set_plan(plan)
        emits = 0

        def counted(*args: Any, **facts: Any) -> None:
            nonlocal emits
            emits += 1
            recorder.emit(*args, **facts)

        recorder.emit("load_started", detail={})
        run_load(plan, checkpoint, stores, counted)
        begun = time.thread_time()
        self.live.flush()
        flushed = time.thread_time() - begun
        return emits, time.clock_gettime(self.clock_id) - before + flushed


def cost_of_emit() -> float:
    """CPU seconds of one emit, measured in a loop of its own."""
    events: list[Event] = []
    recorder = Recorder(1, events.append, time.time)
    begun = time.thread_time()
    for _ in range(100_000):
        recorder.emit("copied", 0, param="p", bytes=1, seconds=0.1, detail={"elements": 1})
    return (time.thread_time() - begun) / 100_000


def measure(name: str, fields: dict[str, int], emit_s: float) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = open_checkpoint(write_v3(Path(folder) / "model", **fields))
        plan = make_plan(checkpoint)
        assert plan.verdict == "pass", [f.message for f in plan.findings if f.level == "error"]
        stores = {0: ParameterStore(plan, 0)}
        watched = Watched(Path(folder) / "state")
        run_load(plan, checkpoint, stores, discard)
        with_s, without_s, shares = [], [], []
        for _ in range(PAIRS):
            begun, cpu = time.perf_counter(), time.process_time()
            run_load(plan, checkpoint, stores, discard)
            without_s.append(time.perf_counter() - begun)
            load_cpu = time.process_time() - cpu
            begun = time.perf_counter()
            emits, live_s = watched.run(plan, checkpoint, stores)
            with_s.append(time.perf_counter() - begun)
            shares.append((emits * emit_s + live_s) / load_cpu)
        ratio = statistics.median(a / b for a, b in zip(with_s, without_s, strict=True))
        watched.live.close()
    return [
        name,
        f"{len(plan.tensors):,}",
        f"{sum(t.stop - t.start for t in plan.tensors.values()) / 1e6:,.0f} MB",
        spread([100 * share for share in shares], "%", 2),
        spread(without_s),
        spread(with_s),
        f"{ratio:.3f}",
    ]


def main() -> None:
    emit_s = cost_of_emit()
    rows = [
        measure("20,000 small tensors", SMALL, emit_s),
        measure("a few big tensors", BIG, emit_s),
    ]
    header = [
        "load",
        "tensors",
        "size",
        "recorder CPU / load CPU",
        "wall without",
        "wall with",
        "ratio",
    ]
    show("Recording", "python benchmarks/record.py", header, rows)
    print(f"one emit: {emit_s * 1e6:.2f} us CPU")


if __name__ == "__main__":
    main()
