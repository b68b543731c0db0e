"""Tensors that were not used, by reason."""

from dataclasses import dataclass

from loadscope.app.panels import format
from loadscope.app.panels.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Skip:
    reason: str
    count: str
    size: str
    expected: bool


def view(live: Snapshot) -> tuple[Skip, ...]:
    """Unexpected reasons first, then by count."""
    found = live["state"]["skips"].items()
    ordered = sorted(found, key=lambda item: (item[1]["expected"], -item[1]["count"]))
    return tuple(
        Skip(reason, format.count(skip["count"]), format.size(skip["bytes"]), skip["expected"])
        for reason, skip in ordered
    )
