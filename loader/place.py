"""Where a source's elements go: the box it is read from and the box it is written to, per seat."""

from math import prod
from typing import NamedTuple

from loadscope.loader.schema import Source, Target, ceil_div
from loadscope.loader.tables import Split
from loadscope.loader.topology import Layout, Seat

Box = tuple[tuple[int, int], ...]
VOCAB_PAD = 64


class Placement(NamedTuple):
    """One source kind on one seat. Stacked targets: `target_box` lacks dim 0, experts
    first_expert … first_expert + experts - 1 fill slots 0 … experts - 1."""

    source_box: Box
    target_box: Box
    first_expert: int
    experts: int

    def slot(self, expert: int) -> int | None:
        """The local slot of an expert; None if this seat does not hold it."""
        slot = expert - self.first_expert
        return slot if 0 <= slot < self.experts else None

    def target_box_of(self, expert: int) -> Box:
        """The written box with the expert's slot as dim 0."""
        if not self.experts:
            return self.target_box
        slot = expert - self.first_expert
        return ((slot, slot + 1), *self.target_box)


def volume(box: Box) -> int:
    """Elements of a box."""
    return prod(b - a for a, b in box)


def padded_rows(rows: int, ways: int) -> int:
    """Vocabulary rows after padding: to 64, or to 64 x ways where that does not divide."""
    padded = ceil_div(rows, VOCAB_PAD) * VOCAB_PAD
    pad = VOCAB_PAD if padded % ways == 0 else VOCAB_PAD * ways
    return ceil_div(rows, pad) * pad


def cut(size: int, ways: int, index: int) -> tuple[int, int]:
    """The interval of one of `ways` equal pieces."""
    length = size // ways
    return index * length, (index + 1) * length


def cut_rows(rows: int, ways: int, index: int) -> tuple[int, int]:
    """The real rows of one piece of a padded vocabulary; empty at the end of a long padding."""
    length = padded_rows(rows, ways) // ways
    return min(index * length, rows), min((index + 1) * length, rows)


def local_shape(target: Target, layout: Layout) -> tuple[int, ...]:
    """Shape of a target on any seat that holds it."""
    shape = list(target.shape)
    for split in target.splits:
        ways = layout.ways(split.axis)
        size = shape[split.dim]
        if split.axis == "vocab":
            size = padded_rows(size, ways)
        shape[split.dim] = size // ways
    return tuple(shape)


def place(target: Target, source: Source, layout: Layout, seat: Seat) -> Placement:
    """The boxes of one source kind on one seat."""
    stacked = target.is_stacked
    first, stop = cut(source.experts, layout.ways("ep"), seat.ep) if stacked else (0, 0)
    lead = 1 if stacked else 0
    written = _written_shape(target, source)
    source_box, target_box = [], []
    for dim, size in enumerate(written, start=lead):
        start, end = _interval(_split_of(target, dim), size, layout, seat)
        source_box.append((start, end))
        offset = _part_offset(target, source, layout) if dim == target.part_dim else 0
        target_box.append((offset, offset + end - start))
    if source.is_input:
        source_box = [(0, size) for size in source.shape]
    return Placement(tuple(source_box), tuple(target_box), first, stop - first)


def _written_shape(target: Target, source: Source) -> tuple[int, ...]:
    """Elements that the source fills in the whole model, without the expert dim."""
    shape = list(target.shape)
    if source.part is not None:
        shape[target.part_dim] = next(p.size for p in target.parts if p.name == source.part)
    return tuple(shape[1:] if target.is_stacked else shape)


def _split_of(target: Target, dim: int) -> Split | None:
    return next((split for split in target.splits if split.dim == dim), None)


def _interval(split: Split | None, size: int, layout: Layout, seat: Seat) -> tuple[int, int]:
    if split is None:
        return 0, size
    ways, index = layout.ways(split.axis), seat.index(split.axis)
    if split.axis == "vocab":
        return cut_rows(size, ways, index)
    return cut(size, ways, index)


def _part_offset(target: Target, source: Source, layout: Layout) -> int:
    """Where a part begins along the fused dim of the local parameter."""
    if source.part is None:
        return 0
    split = _split_of(target, target.part_dim)
    ways = 1 if split is None else layout.ways(split.axis)
    names = [part.name for part in target.parts]
    before = target.parts[: names.index(source.part)]
    return sum(part.size // ways for part in before)
