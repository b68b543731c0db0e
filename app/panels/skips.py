"""Tensors that were not used, by reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadscope.app.panels import format
from loadscope.app.panels.snapshot import Snapshot, chip


@dataclass(frozen=True, slots=True)
class Skip:
    chip: str
    reason: str
    count: str
    size: str
    expected: bool


def view(live: Snapshot) -> tuple[Skip, ...]:
    """Unexpected reasons first, then role by role, by count."""
    found = [
        (load, reason, skip)
        for load in live["loads"]
        for reason, skip in sorted(load["state"]["skips"].items(), key=_by_count)
    ]
    ordered = sorted(found, key=lambda item: bool(item[2]["expected"]))
    return tuple(row(live, *item) for item in ordered)


def _by_count(item: tuple[str, Mapping[str, Any]]) -> int:
    return -int(item[1]["count"])


def row(live: Snapshot, load: Mapping[str, Any], reason: str, skip: Mapping[str, Any]) -> Skip:
    return Skip(
        chip=chip(live, load),
        reason=reason,
        count=format.count(skip["count"]),
        size=format.size(skip["bytes"]),
        expected=skip["expected"],
    )
