"""int8 codes with one scale per row to floats, multiplied in the float type itself."""

import torch

from loadscope.kernels.checks import require

CASES = ((1024, 128), (1, 1), (7, 33))


def dequantise_channel_int8(
    codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """Codes int8 [N, K] and float32 (or `dtype`) scales [N, 1] to [N, K] in `dtype`.

    dtype(code) * dtype(scale): the scale is rounded before the multiply, where
    `dequantise_block` keeps it in float32 (spec 5.2 row 8 of the reference loader).
    Raises ValueError for another shape or dtype.
    """
    require("codes", codes, (torch.int8,), (-1, -1))
    require("scales", scales, (torch.float32, dtype), (codes.shape[0], 1))
    return codes.to(dtype).mul_(scales.to(dtype))


def bytes_moved(rows: int, columns: int, out_bytes: int) -> int:
    """Bytes a perfect kernel reads and writes."""
    return rows * columns * (1 + out_bytes) + rows * 4
