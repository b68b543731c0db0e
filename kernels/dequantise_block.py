"""Block-quantised codes to floats: out[i, j] = round(float32(code) * scale of its block)."""

from collections.abc import Iterator

import torch

from loadscope.kernels.checks import require
from loadscope.kernels.chunks import row_chunks

CODES = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.int8)
# each converts to float32 without rounding
SCALES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e8m0fnu)


def dequantise_block(
    codes: torch.Tensor,
    scales: torch.Tensor,
    block: tuple[int, int] = (128, 128),
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Codes [N, K] (fp8 e4m3, int8) and scales [ceil(N/bn), ceil(K/bk)] to [N, K] in `dtype`.

    A block entry of 0 is the whole dim: (1, 0) per channel, scales [N, 1] or [N]; (0, 0) per
    tensor, scales [], [1] or [1, 1]; (1, 128) groups of columns. One float32 multiply and one
    rounding per element (spec 6.1 and 6.6 of the reference loader). Raises ValueError if the
    scales do not cover the matrix exactly, or a dtype is none of CODES, SCALES.
    """
    require("codes", codes, CODES, (-1, -1))
    out = torch.empty(codes.shape, dtype=dtype, device=codes.device)
    for rows, values in dequantised_rows(codes, scales, block):
        out[rows] = values.to(dtype)
    return out


def dequantised_rows(
    codes: torch.Tensor, scales: torch.Tensor, block: tuple[int, int]
) -> Iterator[tuple[slice, torch.Tensor]]:
    """The same values before they are rounded: ranges of rows, each with its float32 products."""
    require("codes", codes, CODES, (-1, -1))
    grid = scale_grid(codes, scales, block)
    height, width = (per or max(size, 1) for per, size in zip(block, codes.shape, strict=True))
    for rows in row_chunks(*codes.shape):
        blocks = torch.arange(rows.start, rows.stop, device=codes.device) // height
        values = codes[rows].to(torch.float32)
        scale_columns(values, grid[blocks], width)
        yield rows, values


def scale_grid(codes: torch.Tensor, scales: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Scales as float32 [ceil(N/bn), ceil(K/bk)]; ValueError unless they fit codes and block."""
    whole = tuple(
        -(-size // per) if per else 1 for size, per in zip(codes.shape, block, strict=True)
    )
    # dims that hold one block, because the block is the whole dim, may be left out at the end
    shorter = [whole[:kept] for kept in (0, 1) if not any(block[kept:])]
    require("scales", scales, SCALES, whole, *shorter)
    return scales.to(torch.float32).reshape(whole)


def scale_columns(values: torch.Tensor, scales: torch.Tensor, width: int) -> None:
    """Multiply in place: column j of a row by that row's scale j // width."""
    groups = values.shape[1] // width
    even = groups * width
    values[:, :even].view(values.shape[0], groups, width).mul_(scales[:, :groups, None])
    values[:, even:].mul_(scales[:, -1:])


def bytes_moved(rows: int, columns: int, block: tuple[int, int], out_bytes: int) -> int:
    """Bytes a perfect kernel reads (codes of one byte, float32 scales) and writes."""
    bn, bk = block[0] or rows, block[1] or columns
    return rows * columns * (1 + out_bytes) + -(-rows // bn) * -(-columns // bk) * 4


CASES = (
    ((128, 128), (128, 128)),
    ((1, 1), (128, 128)),
    ((576, 7168), (128, 128)),
    ((130, 257), (128, 128)),
    ((32, 96), (16, 32)),
    ((130, 257), (1, 0)),
    ((130, 257), (0, 0)),
    ((5, 256), (1, 128)),
    ((130, 257), (0, 64)),
    ((3000, 700), (128, 128)),
)
