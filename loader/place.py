"""Where a source's elements go: the box it is read from and the box it is written to, per seat."""

from math import prod
from typing import NamedTuple

from loadscope.loader.schema import Source, Target, ceil_div
from loadscope.loader.tables import Split
from loadscope.loader.topology import Layout, Seat

Box = tuple[tuple[int, int], ...]
VOCAB_PAD = 64


class Placement(NamedTuple):
    """One source kind on one seat; boxes of a converted source are in the operation's result.

    Sources of one expert: `target_box` lacks dim 0, experts first_expert … first_expert +
    experts - 1 fill the slots from first_slot on.
    """

    source_box: Box
    target_box: Box
    first_expert: int
    experts: int
    first_slot: int = 0

    def slot(self, expert: int) -> int | None:
        """The local slot of an expert; None if this seat does not hold it."""
        number = expert - self.first_expert
        return self.first_slot + number if 0 <= number < self.experts else None

    def target_box_of(self, expert: int) -> Box:
        """The written box with the expert's slot as dim 0."""
        slot = self.slot(expert)
        return self.target_box if slot is None else ((slot, slot + 1), *self.target_box)


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
        size = shape[split.dim] - split.kept
        if split.axis == "vocab":
            size = padded_rows(size, ways)
        shape[split.dim] = size // ways + split.kept
    return tuple(shape)


def place(target: Target, source: Source, layout: Layout, seat: Seat) -> Placement:
    """The boxes of one source kind on one seat."""
    lead = 1 if source.experts else 0
    source_box, target_box = [], []
    for dim, size in enumerate(source.extent, start=lead):
        start, end = _interval(_split_of(target, dim), size, layout, seat)
        origin = source.origin[dim - lead]
        source_box.append((origin + start, origin + end))
        offset = _part_offset(target, source, layout) if dim == target.part_dim else 0
        target_box.append((offset, offset + end - start))
    first, count, slot = _experts(target, source, layout, seat)
    return Placement(tuple(source_box), tuple(target_box), first, count, slot)


def _experts(target: Target, source: Source, layout: Layout, seat: Seat) -> tuple[int, int, int]:
    """(first expert, how many, first slot) that a seat holds of a source of single experts."""
    if not source.experts:
        return 0, 0, 0
    split = _split_of(target, 0)
    if split is None:
        return source.first_expert, source.experts, source.first_expert
    routed = target.experts - split.kept
    start, end = cut(routed, layout.ways(split.axis), seat.index(split.axis))
    if source.first_expert >= routed:
        # experts behind the routed ones are on every rank, in the last slots
        return source.first_expert, source.experts, end - start + source.first_expert - routed
    return start, end - start, 0


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
    names = [part.name for part in target.parts]
    if source.part not in names:
        return 0
    split = _split_of(target, target.part_dim)
    ways = 1 if split is None else layout.ways(split.axis)
    before = target.parts[: names.index(source.part)]
    return sum(part.size // ways for part in before)
