"""AWQ's 4-bit codes, zero points and group scales to floats: (code - zero) * scale.

int32 word c of a row, bits 31 … 0:   n7 n6 n5 n4 n3 n2 n1 n0
output column 8c + t takes nibble NIBBLE_OF_COLUMN[t]
"""

import torch

from loadscope.kernels.checks import require, require_multiple
from loadscope.kernels.chunks import row_chunks

NIBBLE_OF_COLUMN = (0, 4, 1, 5, 2, 6, 3, 7)

CASES = ((128, 1024, 64), (1, 8, 1), (6, 24, 2), (96, 40, 32))


def unpack_awq(words: torch.Tensor) -> torch.Tensor:
    """int32 [R, C/8] to the codes 0 … 15 as uint8 [R, C], columns in their true order."""
    shifts = torch.tensor(NIBBLE_OF_COLUMN, dtype=torch.int32, device=words.device) * 4
    out = torch.empty(words.shape[0], words.shape[1] * 8, dtype=torch.uint8, device=words.device)
    for rows in row_chunks(*out.shape):
        out[rows] = ((words[rows, :, None] >> shifts) & 0xF).flatten(1)
    return out


def dequantise_awq(
    qweight: torch.Tensor, scales: torch.Tensor, qzeros: torch.Tensor
) -> torch.Tensor:
    """int32 [K, N/8], scales [K/g, N] and int32 zeros [K/g, N/8] to [K, N] in the scales' dtype.

    The difference is exact, the product rounded once (spec 6.7 of the reference loader). The
    group size g follows from the shapes. Raises ValueError if they do not agree.
    """
    require("codes", qweight, (torch.int32,), (-1, -1))
    rows, words = qweight.shape
    require("scales", scales, (torch.float16, torch.bfloat16), (-1, words * 8))
    groups = scales.shape[0]
    require("zero points", qzeros, (torch.int32,), (groups, words))
    require_multiple("rows of codes", rows, groups)
    zeros = unpack_awq(qzeros).to(scales.dtype)
    out = torch.empty(rows, words * 8, dtype=scales.dtype, device=qweight.device)
    for part in row_chunks(*out.shape):
        group = torch.arange(part.start, part.stop, device=qweight.device) // (rows // groups)
        codes = unpack_awq(qweight[part]).to(scales.dtype)
        out[part] = codes.sub_(zeros[group]).mul_(scales[group])
    return out


def bytes_moved(rows: int, columns: int, group: int, out_bytes: int) -> int:
    """Bytes a perfect kernel reads (half a byte per code and zero point) and writes."""
    groups = rows // group
    return (
        rows * columns * out_bytes + (rows + groups) * columns // 2 + groups * columns * out_bytes
    )
