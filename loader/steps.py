"""A plan's work on one rank as steps: all copies into one parameter from one file."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from loadscope.loader.dtypes import ITEM_BYTES
from loadscope.loader.place import Box
from loadscope.loader.plan import Plan
from loadscope.loader.views import deliveries, volume

CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor's slice on this rank. `start` is the byte offset of the tensor in its file."""

    tensor: str
    source: int
    part: str | None
    dtype: str
    shape: tuple[int, ...]
    start: int
    source_box: Box
    target_box: Box

    @property
    def elements(self) -> int:
        return volume(self.source_box)

    @property
    def row_bytes(self) -> int:
        return prod(self.shape[1:]) * ITEM_BYTES[self.dtype]

    @property
    def rows(self) -> tuple[int, int]:
        """Rows of dim 0 that hold the slice; a scalar is one row."""
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
    found: dict[tuple[int, str], Step] = {}
    started: set[str] = set()
    tensors = sorted(plan.tensors.items(), key=lambda item: (item[1].file, item[1].start))
    for name, tensor in tensors:
        place = plan.find(name)
        assert place is not None
        for delivery in deliveries(plan, *place, ranks=(rank,)):
            key = (tensor.file, delivery.param)
            step = found.get(key)
            if step is None:
                cell = cells.get(delivery.param)
                step = Step(len(found), tensor.file, delivery.target, delivery.param, cell)
                found[key] = step
                if delivery.param not in started:
                    seat = plan.seats[rank]
                    step.zero_box = plan.zero_boxes.get((delivery.target, seat.tp))
                    started.add(delivery.param)
            tail = place[0]
            assert tail.source is not None
            step.pieces.append(
                Piece(
                    name,
                    tail.source,
                    delivery.part,
                    tensor.dtype,
                    tensor.shape,
                    tensor.start,
                    delivery.source_box,
                    delivery.target_box,
                )
            )
    return list(found.values())


def cell_numbers(plan: Plan, geometry: Mapping[str, Any]) -> dict[str, int]:
    """Parameter name to its cell in a heat map of `views.grid`."""
    places = {(c["row"], c["column"]): i for i, c in enumerate(geometry["cells"])}
    columns = {name: i for i, name in enumerate(geometry["columns"])}
    numbers = {}
    for target in plan.targets:
        column = columns.get(target.module)
        for layer in range(target.layers.bit_length()):
            row = layer + 1 if target.stage == "layer" else 0
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
