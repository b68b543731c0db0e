"""How much a tensor changed, element by element, in little memory; whole ranks into one table."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from loadscope.loader.change_table import Change, ChangeTable, is_packed, kind_of, pieces
from loadscope.loader.copies import SAME_WIDTH
from loadscope.loader.plan import Plan
from loadscope.loader.views import ParameterView

__all__ = ["CHUNK_BYTES", "Change", "ChangeTable", "compare", "compare_stores", "kind_of"]

# float64 copies of a chunk are 4 to 8 times as large and must stay in the cache
CHUNK_BYTES = 512 << 10
# a GPU is idle between launches, so it gets more at a time
DEVICE_CHUNK_BYTES = 8 << 20
BYTE_DTYPES = frozenset(
    {
        torch.int8,
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    }
)
WIDE_DTYPES = frozenset({torch.bfloat16, torch.float16, torch.float32})


def compare(
    old: Tensor, new: Tensor, *, is_packed: bool = False, chunk_bytes: int | None = None
) -> Change:
    """What became of a tensor, measured in float64 where the new one lies.

    Beside the two it needs about 25 times `chunk_bytes`, 50 where there are NaNs. `is_packed`: its
    integers hold several numbers each. Raises ValueError for two shapes or two dtypes.
    """
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        raise ValueError(
            f"found {old.dtype} {list(old.shape)} before and {new.dtype} {list(new.shape)} after; "
            "expected one dtype and one shape"
        )
    if chunk_bytes is None:
        chunk_bytes = CHUNK_BYTES if new.device.type == "cpu" else DEVICE_CHUNK_BYTES
    step = max(1, chunk_bytes // new.element_size())
    tally = _tally(new, min(step, new.numel()), is_packed=is_packed)
    for before, after in _chunks(old.detach(), new.detach(), step):
        tally.add(before.to(after.device), after)
    return tally.change(new.numel())


def _chunks(old: Tensor, new: Tensor, step: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Both in flat pieces of `step` elements, copied only where they do not lie in one piece."""
    if old.is_contiguous() and new.is_contiguous():
        flat = (old.view(-1), new.view(-1))
        for start in range(0, new.numel(), step):
            yield flat[0][start : start + step], flat[1][start : start + step]
    elif new.numel() <= step:
        yield old.reshape(-1), new.reshape(-1)
    else:
        dim = max(range(new.dim()), key=new.size)
        middle = new.size(dim) // 2
        for start, count in ((0, middle), (middle, new.size(dim) - middle)):
            halves = (old.narrow(dim, start, count), new.narrow(dim, start, count))
            yield from _chunks(*halves, step)


class _Tally(Protocol):
    """Adds up chunks of one tensor."""

    def add(self, old: Tensor, new: Tensor) -> None: ...

    def change(self, elements: int) -> Change: ...


def _tally(tensor: Tensor, step: int, *, is_packed: bool) -> _Tally:
    is_byte = tensor.dtype in BYTE_DTYPES
    if is_packed or not (is_byte or tensor.dtype in WIDE_DTYPES):
        return _Codes()
    if is_byte and tensor.device.type == "cpu":
        return _Bytes(tensor.dtype)
    return _Floats(step, tensor.device)


def _count(old: Tensor, new: Tensor) -> int:
    """Elements whose bits differ."""
    bits = SAME_WIDTH[new.element_size()]
    one, two = old.view(bits), new.view(bits)
    if new.device.type == "cpu":
        return int(np.count_nonzero(one.numpy() != two.numpy()))
    return int(torch.count_nonzero(one != two))


class _Codes:
    """Integers whose difference means nothing."""

    def __init__(self) -> None:
        self._changed = 0

    def add(self, old: Tensor, new: Tensor) -> None:
        self._changed += _count(old, new)

    def change(self, elements: int) -> Change:
        return Change(elements, self._changed, None, None, None, 0, 0, 0, 0)


class _Floats:
    """Numbers of any width, as float64 in memory that is used for one chunk after another."""

    def __init__(self, elements: int, device: torch.device) -> None:
        self._changed = 0
        self._max_abs = self._sum_squares = self._old_sum_squares = 0.0
        self._now = self._before = (0, 0)
        self._room = torch.empty((2, elements), dtype=torch.float64, device=device)

    def add(self, old: Tensor, new: Tensor) -> None:
        changed = _count(old, new)
        self._changed += changed
        before, moved = self._room[:, : len(new)]
        before.copy_(old)
        if changed:
            moved.copy_(new).sub_(before)
        is_finite = self._add_moved(before, moved) if changed else self._add_equal(before)
        if not is_finite:
            self._add_not_finite(old.to(torch.float64), new.to(torch.float64))

    def _add_equal(self, values: Tensor) -> bool:
        """False, and nothing is added, if a NaN or Inf is among them."""
        squares = float(torch.dot(values, values))
        if isfinite(squares):
            self._old_sum_squares += squares
        return isfinite(squares)

    def _add_moved(self, before: Tensor, moved: Tensor) -> bool:
        """False, and nothing is added, if a NaN or Inf is among them."""
        found = (torch.dot(moved, moved), torch.dot(before, before), *torch.aminmax(moved))
        squares, old_squares, least, greatest = torch.stack(found).tolist()
        if isfinite(squares):
            self._sum_squares += squares
            self._old_sum_squares += old_squares
            self._max_abs = max(self._max_abs, -least, greatest)
        return isfinite(squares)

    def _add_not_finite(self, before: Tensor, after: Tensor) -> None:
        self._before = _plus(self._before, before)
        self._now = _plus(self._now, after)
        was_finite = torch.isfinite(before)
        moved = torch.where(was_finite & torch.isfinite(after), after - before, 0.0)
        self._add_moved(torch.where(was_finite, before, 0.0), moved)

    def change(self, elements: int) -> Change:
        return Change(
            elements, self._changed, self._max_abs, self._sum_squares, self._old_sum_squares,
            *self._now, *self._before,
        )  # fmt: skip


def _plus(counts: tuple[int, int], values: Tensor) -> tuple[int, int]:
    """(NaN, Inf) counted so far and those of some more values."""
    nan, inf = int(torch.isnan(values).sum()), int(torch.isinf(values).sum())
    return counts[0] + nan, counts[1] + inf


class _Bytes:
    """Numbers of one byte on the host: how often each pair of codes occurs says it all.

    torch turns float8 into floats one by one there; counting is much faster.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._changed = 0
        self._equal = torch.zeros(256, dtype=torch.int64)
        self._pairs = torch.zeros(0, dtype=torch.int64)

    def add(self, old: Tensor, new: Tensor) -> None:
        changed = _count(old, new)
        self._changed += changed
        before, after = old.view(torch.uint8), new.view(torch.uint8)
        if not changed:
            self._equal += torch.bincount(after, minlength=256)
            return
        if not len(self._pairs):
            self._pairs = torch.zeros(1 << 16, dtype=torch.int64)
        pairs = before.to(torch.int32).mul_(256).add_(after)
        self._pairs += torch.bincount(pairs, minlength=1 << 16)

    def change(self, elements: int) -> Change:
        values = torch.arange(256, dtype=torch.uint8).view(self._dtype).to(torch.float64)
        was = is_now = self._equal
        sum_squares = max_abs = 0.0
        if len(self._pairs):
            pairs = self._pairs.view(256, 256)
            was, is_now = was + pairs.sum(1), is_now + pairs.sum(0)
            sum_squares, max_abs = _differences(pairs, values)
        finite = torch.isfinite(values)
        squares = torch.where(finite, values.square(), 0.0)
        return Change(
            elements, self._changed, max_abs, sum_squares, float(torch.dot(squares, was.double())),
            int(is_now[values.isnan()].sum()), int(is_now[values.isinf()].sum()),
            int(was[values.isnan()].sum()), int(was[values.isinf()].sum()),
        )  # fmt: skip


def _differences(pairs: Tensor, values: Tensor) -> tuple[float, float]:
    """Sum of squares and greatest of new - old; pairs [256, 256] counts old codes by new ones."""
    is_here = (pairs > 0) & torch.isfinite(values) & torch.isfinite(values).unsqueeze(1)
    moved = torch.where(is_here, values - values.unsqueeze(1), 0.0).abs()
    return float((moved.square() * pairs).sum()), float(moved.max())


def compare_stores(
    plan: Plan,
    rank: int,
    old: Mapping[str, Tensor],
    new: Mapping[str, Tensor],
    views: Iterable[ParameterView],
    role: str,
    table: ChangeTable,
    gate: Callable[[int], object] | None = None,
) -> list[str]:
    """Compare parameters of one rank and count them in; what `old` lacks is left out.

    Returns parameters that hold NaN or Inf only since. Every stored element counts once in the
    table, whichever ranks are given and in whichever order: cut parameters on all of them, what
    several hold alike (norms, qkv_a) on the first. `gate` is called with 0 before each parameter.
    """
    seat, broken = plan.seats[rank], []
    for view in views:
        if view.name not in old:
            continue
        if gate is not None:
            gate(0)
        target = plan.targets[view.target]
        before, after = old[view.name], new[view.name]
        for piece in pieces(target, seat, tuple(after.shape)):
            if not table.claim(role, view.name, piece.key):
                continue
            parts = (before[piece.place], after[piece.place])
            change = compare(*parts, is_packed=is_packed(target))
            table.add(role, view, change)
            if change.is_broken:
                broken.append(view.name)
    return list(dict.fromkeys(broken))
