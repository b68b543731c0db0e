"""A plan's work on one rank as steps: all copies into one parameter from one file."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from loadscope.loader.dtypes import ITEM_BYTES
from loadscope.loader.outcomes import holds, uses
from loadscope.loader.place import Box, volume
from loadscope.loader.plan import Plan
from loadscope.loader.schema import Source
from loadscope.loader.topology import Seat, layers_in

CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor's slice on this rank. `start` is the byte offset of the tensor in its file.

    A converted tensor is read whole; its `source_box` is in the operation's result.
    """

    tensor: str
    source: int
    expert: int
    dtype: str
    shape: tuple[int, ...]
    start: int
    is_whole: bool
    source_box: Box
    target_box: Box

    @property
    def elements(self) -> int:
        """Elements that are read."""
        return prod(self.shape) if self.is_whole else volume(self.source_box)

    @property
    def row_bytes(self) -> int:
        return prod(self.shape[1:]) * ITEM_BYTES[self.dtype]

    @property
    def rows(self) -> tuple[int, int]:
        """Rows of dim 0 that hold the slice; a scalar is one row."""
        if self.is_whole:
            return (0, self.shape[0]) if self.shape else (0, 1)
        return self.source_box[0] if self.source_box else (0, 1)


@dataclass(slots=True)
class Step:
    """All copies into one parameter from one file; the unit of events and timing."""

    number: int
    file: int
    target: int
    param: str
    cell: int | None
    zero_box: Box | None = None
    pieces: list[Piece] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(piece.elements * ITEM_BYTES[piece.dtype] for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Use:
    """Rows of one piece inside a chunk; `offset` is where they begin in the chunk's bytes."""

    piece: Piece
    rows: tuple[int, int]
    offset: int


@dataclass(slots=True)
class Chunk:
    """A byte range of one file that is read at once, and the rows it brings."""

    step: Step
    file: int
    start: int
    stop: int
    uses: list[Use]
    is_last: bool = False


def steps(plan: Plan, rank: int, cells: Mapping[str, int] | None = None) -> list[Step]:
    """The steps of a rank; steps of one file follow the order of their first tensor in it.

    `cells` gives each parameter's cell in the heat map, as `cell_numbers` makes it.
    """
    cells = cells if cells is not None else {}
    seat = plan.seats[rank]
    found: dict[tuple[int, str], Step] = {}
    started: set[str] = set()
    for file, _start, param, target, piece in sorted(_pieces(plan, seat), key=_in_file_order):
        step = found.get((file, param))
        if step is None:
            step = found[(file, param)] = Step(len(found), file, target, param, cells.get(param))
            if param not in started:
                step.zero_box = plan.zero_boxes.get((target, seat.tp))
                started.add(param)
        step.pieces.append(piece)
    return list(found.values())


_Placed = tuple[int, int, str, int, Piece]


def _in_file_order(placed: _Placed) -> tuple[int, int]:
    return placed[0], placed[1]


def _pieces(plan: Plan, seat: Seat) -> Iterator[_Placed]:
    """(file, offset, parameter, target, piece) of every slice on a seat, tail by tail."""
    for tail, index, source, target in uses(plan):
        placement = plan.placements[(index, seat.tp)]
        if source.experts and placement.slot(tail.expert) is None:
            continue
        target_box = placement.target_box_of(tail.expert)
        shape = read_shape(source)
        assert source.target is not None
        for layer in layers_in(tail.routed & holds(plan, target, seat)):
            name = tail.name(layer)
            tensor = plan.tensors[name]
            piece = Piece(
                name, index, tail.expert, tensor.dtype, shape, tensor.start,
                source.is_read_whole, placement.source_box, target_box,
            )  # fmt: skip
            yield tensor.file, tensor.start, target.full_name(layer), source.target, piece


def read_shape(source: Source) -> tuple[int, ...]:
    """The shape to read a tensor in: a scalar or a column may be stored with fewer dims."""
    if source.is_read_whole or prod(source.shape) != prod(source.extent):
        return source.shape
    return source.extent


def cell_numbers(plan: Plan, geometry: Mapping[str, Any]) -> dict[str, int]:
    """Parameter name to its cell in a heat map of `views.grid`."""
    places = {(c["row"], c["column"]): i for i, c in enumerate(geometry["cells"])}
    columns = {name: i for i, name in enumerate(geometry["columns"])}
    rows = {layer: row for row, layer in enumerate(plan.layer_numbers, start=1)}
    numbers = {}
    for target in plan.targets:
        column = columns.get(target.module)
        for layer in layers_in(target.layers):
            row = rows.get(layer, 0) if target.stage == "layer" else 0
            if column is not None and (row, column) in places:
                numbers[target.full_name(layer)] = places[(row, column)]
    return numbers


def chunks(all_steps: list[Step], limit: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Byte ranges to read, in order: neighbours merged, long tensors cut between rows."""
    for step in all_steps:
        pending: Chunk | None = None
        for piece in step.pieces:
            for rows in _row_ranges(piece, limit):
                start = piece.start + rows[0] * piece.row_bytes
                stop = piece.start + rows[1] * piece.row_bytes
                if pending is not None and pending.stop == start and stop - pending.start <= limit:
                    pending.uses.append(Use(piece, rows, start - pending.start))
                    pending.stop = stop
                    continue
                if pending is not None:
                    yield pending
                pending = Chunk(step, step.file, start, stop, [Use(piece, rows, 0)])
        assert pending is not None
        pending.is_last = True
        yield pending


def _row_ranges(piece: Piece, limit: int) -> Iterator[tuple[int, int]]:
    first, last = piece.rows
    each = max(1, limit // max(1, piece.row_bytes))
    for start in range(first, last, each):
        yield start, min(start + each, last)
    if first == last:
        yield first, last
