"""Floats, or codes with finer scales, to fp8 codes with one scale for the whole matrix.

Two passes over ranges of rows: the largest magnitude, then the codes. No float32 copy of the
matrix is ever whole.
"""

from collections.abc import Callable, Iterator

import torch

from loadscope.kernels.checks import require, require_dtype
from loadscope.kernels.chunks import row_chunks
from loadscope.kernels.dequantise_block import dequantised_rows

# e4m3fnuz reaches 240; the reference uses 224 on every platform that has it
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 224.0}
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
SMALLEST_AMAX = 1e-12

CASES = ((1024, 128), (1, 1), (130, 257), (3000, 700))

Rows = Iterator[tuple[slice, torch.Tensor]]
Codes = tuple[torch.Tensor, torch.Tensor]


def input_to_float8(values: torch.Tensor, dtype: torch.dtype) -> Codes:
    """Floats [N, K] to fp8 codes [N, K] of `dtype` and a float32 scale [].

    amax = largest magnitude, at least 1e-12; a = (1 / amax) * m, each step rounded to float32;
    code = dtype(clamp(value * a, -m, m)) with m = 448 (e4m3fnuz: 224); scale = 1 / a (spec 6.4
    of the reference loader). All zeros give zeros. Raises ValueError for other dtypes, or an
    empty matrix.
    """
    require("values", values, FLOATS, (-1, -1))
    return _quantise(lambda: _wide_rows(values), values, dtype)


def block_to_tensor(codes: torch.Tensor, scales: torch.Tensor, block: tuple[int, int]) -> Codes:
    """fp8 codes [N, K] with block scales to codes of the same dtype and a float32 scale [].

    The dequantised values are not rounded in between (spec 6.2 of the reference loader, its
    form without a kernel). `scales` and `block` as in `dequantise_block`; on e4m3fnuz platforms
    both are already normalised. Raises ValueError as the two functions do.
    """
    return _quantise(lambda: dequantised_rows(codes, scales, block), codes, codes.dtype)


def channel_to_tensor(codes: torch.Tensor, scales: torch.Tensor) -> Codes:
    """`block_to_tensor` for one scale per row, [N, 1] or [N], or one in all, [1] or [].

    Spec 6.3 of the reference loader. A one-dim scale is always per row, never per column.
    """
    return block_to_tensor(codes, scales, (0, 0) if scales.shape in ((), (1,)) else (1, 0))


def normalise_fnuz(codes: torch.Tensor, scale: torch.Tensor) -> Codes:
    """e4m3fn codes and scales of any shape to e4m3fnuz codes and doubled scales.

    The same byte means half the value; -0 (0x80), which fnuz reads as NaN, becomes 0. The bytes
    of e4m3fn's NaN, 0x7F and 0xFF, read as 240 and -240 (spec 6.5 of the reference loader). The
    arguments stay as they are. Raises ValueError for other codes.
    """
    require("codes", codes, (torch.float8_e4m3fn,))
    raw = codes.view(torch.uint8)
    return raw.masked_fill(raw == 0x80, 0).view(torch.float8_e4m3fnuz), scale * 2


def _wide_rows(values: torch.Tensor) -> Rows:
    for rows in row_chunks(*values.shape):
        yield rows, values[rows].to(torch.float32)


def _quantise(passes: Callable[[], Rows], like: torch.Tensor, dtype: torch.dtype) -> Codes:
    require_dtype("codes to make", dtype, tuple(LARGEST))
    if like.numel() == 0:
        raise ValueError(f"the matrix has shape {list(like.shape)}; expected an element or more")
    largest = LARGEST[dtype]
    # as the reference does, which divides a number by a tensor: two roundings, not one
    multiplier = _amax(passes()).reciprocal() * largest
    codes = torch.empty(like.shape, dtype=dtype, device=like.device)
    for rows, values in passes():
        codes[rows] = (values * multiplier).clamp_(-largest, largest).to(dtype)
    return codes, multiplier.reciprocal()


def _amax(parts: Rows) -> torch.Tensor:
    largest = torch.stack([values.abs().amax() for _rows, values in parts])
    return largest.amax().clamp(min=SMALLEST_AMAX)


def bytes_moved(rows: int, columns: int, in_bytes: int) -> int:
    """Bytes a perfect kernel reads, twice, and writes; finer scales are not counted."""
    return rows * columns * (2 * in_bytes + 1)
