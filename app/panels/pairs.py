"""Tensors that must meet before either can be written."""

from dataclasses import dataclass

from loadscope.app.panels.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Held:
    param: str
    have: str
    waits_for: str
    rank: int


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
            Held(pair["param"], words(pair["have"]), words(pair["waits_for"]), pair["rank"])
            for pair in state["pairs_held"]
        ),
    )


def words(names: str | list[str]) -> str:
    """One part or several, as text."""
    return names if isinstance(names, str) else ", ".join(names)
