"""The heat map's table twin: layers down, modules across, share of elements written."""

from dataclasses import dataclass

from loadscope.app.panels import format
from loadscope.app.panels.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def view(live: Snapshot) -> Coverage:
    """An empty text stands for "no such parameter"."""
    grid = live["grid"]
    if grid is None:
        return Coverage((), ())
    texts = {(cell["row"], cell["column"]): text(cell) for cell in grid["cells"]}
    columns = range(len(grid["columns"]))
    return Coverage(
        columns=tuple(grid["columns"]),
        rows=tuple(
            Row(name, tuple(texts.get((index, column), "") for column in columns))
            for index, name in enumerate(grid["rows"])
        ),
    )


def text(cell: dict[str, int]) -> str:
    """ "100 %", or with a fault "99.8 %, 1 unexpected"."""
    share = format.percent(cell["written"], cell["total"])
    return f"{share}, {cell['unexpected']} unexpected" if cell["unexpected"] else share
