"""How often each element of a box is covered by other boxes: a sweep over cut points."""

from collections.abc import Sequence
from math import prod

from loadscope.loader.place import Box


def multiplicity(boxes: Sequence[Box], shape: tuple[int, ...]) -> dict[int, int]:
    """How many elements of `shape` are covered how often: {times: elements}.

    What sticks out of the shape counts under -1. Example: boxes ((0, 2),) and ((1, 3),) in (4,)
    give {1: 2, 2: 1, 0: 1}.
    """
    inside = []
    outside = 0
    for box in boxes:
        if len(box) != len(shape) or any(
            a < 0 or b > n for (a, b), n in zip(box, shape, strict=False)
        ):
            outside += prod(max(0, b - a) for a, b in box)
        else:
            inside.append(box)
    counts = _sweep(tuple(sorted(inside)), shape, {})
    if outside:
        counts = {**counts, -1: outside}
    return counts


_Memo = dict[tuple[tuple[Box, ...], int], dict[int, int]]


def _sweep(boxes: tuple[Box, ...], shape: tuple[int, ...], memo: _Memo) -> dict[int, int]:
    """Cut dim 0 at every border; each strip is the same question with one dim less."""
    if not shape:
        return {len(boxes): 1}
    key = (boxes, len(shape))
    if key in memo:
        return memo[key]
    counts: dict[int, int] = {}
    cuts = sorted({0, shape[0], *(edge for box in boxes for edge in box[0])})
    opening: dict[int, list[Box]] = {}
    for box in boxes:
        opening.setdefault(box[0][0], []).append(box)
    active: list[Box] = []
    for start, stop in zip(cuts, cuts[1:], strict=False):
        active = [box for box in active if box[0][1] > start]
        active += [box for box in opening.get(start, ()) if box[0][1] > start]
        strip = _sweep(tuple(sorted(box[1:] for box in active)), shape[1:], memo)
        for times, volume in strip.items():
            counts[times] = counts.get(times, 0) + volume * (stop - start)
    memo[key] = counts
    return counts
