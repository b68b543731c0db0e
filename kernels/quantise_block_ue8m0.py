"""bf16 to fp8 codes in 128 x 128 blocks whose scales are powers of two."""

import torch

from loadscope.kernels.checks import require
from loadscope.kernels.chunks import row_chunks

BLOCK = 128
SMALLEST_AMAX = 1e-4

CASES = ((768, 128), (1, 1), (130, 257), (3000, 700))


def ceil_pow2(x: torch.Tensor) -> torch.Tensor:
    """The smallest power of two not below |x|, within 2^-126 … 2^127, as float32.

    Read off the bits, so no logarithm rounds: powers of two stay, 0 becomes 2^-126 (spec 6.8 of
    the reference loader).
    """
    bits = x.to(torch.float32).abs().view(torch.int32)
    exponents = (bits >> 23) + ((bits & 0x7FFFFF) != 0)
    return (exponents.clamp(1, 254) << 23).view(torch.float32)


def quantise_block_ue8m0(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """bf16 [N, K] to e4m3 codes [N, K] and float32 scales [ceil(N/128), ceil(K/128)].

    Per block: scale = ceil_pow2(max(amax, 1e-4) / 448), code = e4m3(value / scale); the scales
    are not packed (spec 6.8 of the reference loader). Not idempotent: never apply it to its own
    result. Raises ValueError unless the values are a bf16 matrix.
    """
    require("values", values, (torch.bfloat16,), (-1, -1))
    rows, columns = values.shape
    grid = (-(-rows // BLOCK), -(-columns // BLOCK))
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=values.device)
    scales = torch.empty(grid, dtype=torch.float32, device=values.device)
    for part in row_chunks(rows, columns, multiple=BLOCK):
        tall = slice(part.start // BLOCK, -(-part.stop // BLOCK))
        codes[part], scales[tall] = _quantise_rows(values[part])
    return codes, scales


def _quantise_rows(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that begin a block: their codes and scales."""
    rows, columns = values.shape
    wide = values.to(torch.float32)
    padded = torch.nn.functional.pad(wide, (0, -columns % BLOCK, 0, -rows % BLOCK))
    grid = (padded.shape[0] // BLOCK, padded.shape[1] // BLOCK)
    blocks = padded.view(grid[0], BLOCK, grid[1], BLOCK)
    amax = blocks.abs().amax(dim=(1, 3)).clamp(min=SMALLEST_AMAX)
    scales = ceil_pow2(amax / 448.0)
    # the reciprocal of a power of two is exact
    blocks.mul_(scales.reciprocal()[:, None, :, None])
    return padded[:rows, :columns].to(torch.float8_e4m3fn), scales


def bytes_moved(rows: int, columns: int) -> int:
    """Bytes a perfect kernel reads and writes, if it keeps a block at hand between its passes."""
    return rows * columns * (2 + 1) + -(-rows // BLOCK) * -(-columns // BLOCK) * 4
