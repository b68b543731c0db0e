"""Timings by kind of step: reads, copies and every conversion."""

from dataclasses import dataclass

from loadscope.app.panels import format
from loadscope.app.panels.snapshot import Snapshot, chip

FIRST = ("read", "copy")


@dataclass(frozen=True, slots=True)
class Kernel:
    chip: str
    name: str
    count: str
    p50: str
    p90: str
    p99: str
    max: str
    rate: str
    share: float


def view(live: Snapshot) -> tuple[Kernel, ...]:
    """Role by role; reads and copies lead, kernels follow in the order of the state."""
    found = [
        (chip(live, load), name, load["state"]["kernels"][name])
        for load in live["loads"]
        for name in dict.fromkeys((*FIRST, *load["state"]["kernels"]))
        if name in load["state"]["kernels"]
    ]
    whole = sum(timing["seconds"] for _chip, _name, timing in found)
    return tuple(row(*each, whole) for each in found)


def row(role: str, name: str, timing: dict[str, float], whole: float) -> Kernel:
    """One line of the table; share is of the seconds of all steps."""
    busy = timing["seconds"]
    return Kernel(
        chip=role,
        name=name,
        count=format.count(int(timing["count"])),
        p50=format.seconds(timing["p50_s"]),
        p90=format.seconds(timing["p90_s"]),
        p99=format.seconds(timing["p99_s"]),
        max=format.seconds(timing["max_s"]),
        rate=format.rate(timing["bytes"] / busy if busy else None),
        share=busy / whole if whole else 0.0,
    )
