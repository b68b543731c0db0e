"""The heat map's table twin, per role: layers down, modules across, share of elements written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadscope.app.panels import format, verdict
from loadscope.app.panels.snapshot import Snapshot, chip


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """One role's card; without a chip its word and sentence stand at the top of the page."""

    key: str
    chip: str
    word: str
    tone: str
    sentence: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def view(live: Snapshot) -> tuple[Coverage, ...]:
    """One card per load, in their order."""
    return tuple(card(live, load) for load in live["loads"])


def card(live: Snapshot, load: Mapping[str, Any]) -> Coverage:
    state = load["state"]
    status = verdict.shown_status(state)
    columns, rows = table(load["grid"])
    return Coverage(
        key=str(load["role"] or "target"),
        chip=chip(live, load),
        word=verdict.WORDS[status],
        tone=verdict.tone(state, status),
        sentence=state["sentence"],
        columns=columns,
        rows=rows,
    )


def table(grid: Mapping[str, Any] | None) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """An empty text stands for "no such parameter"."""
    if grid is None:
        return (), ()
    texts = {(cell["row"], cell["column"]): text(cell) for cell in grid["cells"]}
    columns = range(len(grid["columns"]))
    rows = tuple(
        Row(name, tuple(texts.get((index, column), "") for column in columns))
        for index, name in enumerate(grid["rows"])
    )
    return tuple(grid["columns"]), rows


def text(cell: dict[str, int]) -> str:
    """ "100 %", or with a fault "99.8 %, 1 unexpected"."""
    share = format.percent(cell["written"], cell["total"])
    return f"{share}, {cell['unexpected']} unexpected" if cell["unexpected"] else share
