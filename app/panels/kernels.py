"""Timings by kind of step: reads, copies and every conversion."""

from dataclasses import dataclass

from loadscope.app.panels import format
from loadscope.app.panels.snapshot import Snapshot

FIRST = ("read", "copy")


@dataclass(frozen=True, slots=True)
class Kernel:
    name: str
    count: str
    p50: str
    p90: str
    p99: str
    max: str
    rate: str
    share: float


def view(live: Snapshot) -> tuple[Kernel, ...]:
    """Reads and copies lead; the kernels follow in the order of the state, so no row jumps."""
    found = live["state"]["kernels"]
    kernels = {name: found[name] for name in (*FIRST, *found) if name in found}
    whole = sum(timing["seconds"] for timing in kernels.values())
    return tuple(row(name, timing, whole) for name, timing in kernels.items())


def row(name: str, timing: dict[str, float], whole: float) -> Kernel:
    """One line of the table; share is of the seconds of all steps."""
    busy = timing["seconds"]
    return Kernel(
        name=name,
        count=format.count(int(timing["count"])),
        p50=format.seconds(timing["p50_s"]),
        p90=format.seconds(timing["p90_s"]),
        p99=format.seconds(timing["p99_s"]),
        max=format.seconds(timing["max_s"]),
        rate=format.rate(timing["bytes"] / busy if busy else None),
        share=busy / whole if whole else 0.0,
    )
