"""NVFP4 to floats: 4-bit e2m1 codes, a scale per 16 columns, a second one for the matrix."""

import torch

from loadscope.kernels.checks import require, require_multiple
from loadscope.kernels.chunks import row_chunks
from loadscope.kernels.dequantise_block import scale_columns

GROUP = 16
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# bit 3 is the sign, so code 8 is -0
E2M1 = (*MAGNITUDES, *(-magnitude for magnitude in MAGNITUDES))

CASES = ((256, 256), (1, 16), (7, 48), (3000, 704))


def dequantise_nvfp4(
    codes: torch.Tensor,
    scales: torch.Tensor,
    scale_2: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """uint8 [N, K/2], e4m3 scales [N, K/16] and a float32 scale [] (or [1]) to [N, K] in `dtype`.

    The low nibble is the even column. value = e2m1(code) * (float32(scale) * scale_2), each
    product in float32, then one rounding to `dtype`. Raises ValueError for other dtypes or shapes.
    """
    require("codes", codes, (torch.uint8,), (-1, -1))
    rows, half = codes.shape
    require_multiple("columns of codes", half, GROUP // 2)
    require("scales", scales, (torch.float8_e4m3fn,), (rows, half * 2 // GROUP))
    require("second scales", scale_2, (torch.float32,), (), (1,))
    pairs = _pairs(codes.device)
    out = torch.empty(rows, half * 2, dtype=dtype, device=codes.device)
    for part in row_chunks(*out.shape):
        values = pairs[codes[part].to(torch.int32)].flatten(1)
        scale_columns(values, scales[part].to(torch.float32) * scale_2, GROUP)
        out[part] = values.to(dtype)
    return out


def _pairs(device: torch.device) -> torch.Tensor:
    """The two values of each byte, float32 [256, 2], low nibble first."""
    values = torch.tensor(E2M1, device=device)
    byte = torch.arange(256, device=device)
    return torch.stack((values[byte & 0xF], values[byte >> 4]), dim=1)


def bytes_moved(rows: int, columns: int, out_bytes: int) -> int:
    """Bytes a perfect kernel reads and writes."""
    return rows * columns * out_bytes + rows * columns // 2 + rows * columns // GROUP
