"""Tensors that must meet before either can be written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadscope.app.panels.snapshot import Snapshot, chip


@dataclass(frozen=True, slots=True)
class Held:
    param: str
    have: str
    waits_for: str
    rank: int
    chip: str


@dataclass(frozen=True, slots=True)
class Pairs:
    closed: int
    total: int
    held: tuple[Held, ...]


def view(live: Snapshot) -> Pairs:
    """Closed pairs are a count; held ones are named."""
    state = live["state"]
    return Pairs(
        closed=state["pairs_closed"],
        total=state["pairs_total"],
        held=tuple(
            held(pair, chip(live, load))
            for load in live["loads"]
            for pair in load["state"]["pairs_held"]
        ),
    )


def held(pair: Mapping[str, Any], role: str) -> Held:
    have, waits_for = words(pair["have"]), words(pair["waits_for"])
    return Held(pair["param"], have, waits_for, pair["rank"], role)


def words(names: str | list[str]) -> str:
    """One part or several, as text."""
    return names if isinstance(names, str) else ", ".join(names)
