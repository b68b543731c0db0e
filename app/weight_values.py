"""A few values of a tensor as JSON has them: a slice of it, and numbers about all of it."""

import re
from math import isfinite, prod, sqrt
from typing import Any

import torch

from loadscope.app.problems import Problem
from loadscope.loader.checksums import tensor_checksum
from loadscope.loader.place import Box

ALGORITHM = "xxh3-128"
MAX_VALUES = 4096
FIRST_VALUES = 8
# elements that are looked at in float64 at once
CHUNK_ELEMENTS = 1 << 20
INTERVAL = re.compile(r"(-?\d{1,15})?(?:(:)(-?\d{1,15})?)?")


def describe(
    tensor: torch.Tensor | None, shape: tuple[int, ...], text: str | None
) -> dict[str, Any]:
    """Checksum and statistics of all, values of the slice `text`; None where there is no tensor.

    Raises Problem 422 for a slice that does not fit the shape.
    """
    box = None if text is None else parse_slice(text, shape)
    sliced = None if box is None else [list(interval) for interval in box]
    told: dict[str, Any] = {"slice": sliced, "algorithm": ALGORITHM}
    if tensor is None:
        return {**told, "stats": None, "values": None, "checksum": None}
    return {
        **told,
        "stats": statistics(tensor),
        "values": values_of(tensor, box),
        "checksum": tensor_checksum(tensor, ALGORITHM),
    }


def parse_slice(text: str, shape: tuple[int, ...]) -> Box:
    """`0:4,:8` as start and stop per dim, as numpy reads it; an index `3` stands for `3:4`.

    Dims that are left out are whole. Problem 422 that names the dim: not understood, without an
    element, or more than MAX_VALUES values in all.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > len(shape):
        raise _wrong(f"found {len(parts)} dims; the shape is {list(shape)}")
    box = tuple(_interval(part, dim, shape[dim]) for dim, part in enumerate(parts))
    box += tuple((0, size) for size in shape[len(parts) :])
    count = prod(stop - start for start, stop in box)
    if count > MAX_VALUES:
        dim = max(range(len(box)), key=lambda dim: box[dim][1] - box[dim][0])
        length = box[dim][1] - box[dim][0]
        raise _wrong(
            f"dim {dim}: {length:,} elements of it make {count:,} values; one answer has at most "
            f"{MAX_VALUES:,}: give a shorter interval"
        )
    return box


def _interval(text: str, dim: int, size: int) -> tuple[int, int]:
    found = INTERVAL.fullmatch(text)
    if found is None or not text:
        raise _wrong(f"dim {dim}: found {text[:40]!r}; expected start:stop, an index, or : for all")
    first, colon, last = found.groups()
    if colon is None:
        index = int(first) + (size if int(first) < 0 else 0)
        if not 0 <= index < size:
            raise _wrong(f"dim {dim}: found index {first}; it has {size:,} elements")
        return index, index + 1
    start, stop, _step = slice(*(None if x is None else int(x) for x in (first, last))).indices(
        size
    )
    if start >= stop:
        raise _wrong(f"dim {dim}: {text} holds no element; it has {size:,}")
    return start, stop


def _wrong(what: str) -> Problem:
    errors = [{"field": "slice", "in": "query", "message": what}]
    return Problem(422, "invalid-request", f"slice: {what}", errors=errors)


def values_of(tensor: torch.Tensor, box: Box | None) -> Any:
    """The values of a box, nested as its dims are; without one the first few, row by row."""
    if box is None:
        return _as_json(_some(tensor.reshape(-1)[:FIRST_VALUES]))
    return _as_json(_some(tensor[tuple(slice(start, stop) for start, stop in box)]))


def _some(tensor: torch.Tensor) -> Any:
    wide = tensor.to(torch.float64) if tensor.is_floating_point() else tensor
    return wide.cpu().tolist()


def _as_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_json(one) for one in value]
    # JSON has no number for these
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def statistics(tensor: torch.Tensor) -> dict[str, Any]:
    """Of all elements; min, max, mean and rms of the finite ones, None if there are none."""
    finite = nan = inf = zeros = 0
    least, greatest, total, squares = float("inf"), float("-inf"), 0.0, 0.0
    flat = tensor.detach().reshape(-1)
    for start in range(0, len(flat), CHUNK_ELEMENTS):
        values = flat[start : start + CHUNK_ELEMENTS].to(torch.float64)
        nan += int(values.isnan().sum())
        inf += int(values.isinf().sum())
        zeros += int((values == 0).sum())
        values = values[values.isfinite()]
        if not len(values):
            continue
        finite += len(values)
        least, greatest = min(least, float(values.min())), max(greatest, float(values.max()))
        total, squares = total + float(values.sum()), squares + float(values.square().sum())
    numbers: dict[str, Any] = dict.fromkeys(("min", "max", "mean", "rms"))
    if finite:
        numbers = {
            "min": least,
            "max": greatest,
            "mean": _as_json(total / finite),
            "rms": _as_json(sqrt(squares / finite)),
        }
    return {**numbers, "nan": nan, "inf": inf, "zeros": zeros}
