"""AWQ tensors to the layout of the fused experts: rows are outputs, two codes to a byte.

    codes        int32 [K, N/8]    to  uint8 [N, K/2]      bytes run along a row
    zero points  int32 [K/g, N/8]  to  uint8 [N/2, K/g]    bytes run down a column
    scales             [K/g, N]    to        [N, K/g]

The even row or column is the low nibble. No value changes (spec 4.6 of the reference loader,
moe_wna16). `repeat` writes each group that many times in a row, for a group size cut to fit.
"""

import torch

from loadscope.kernels.checks import require, require_multiple
from loadscope.kernels.chunks import row_chunks
from loadscope.kernels.dequantise_awq import unpack_awq

CASES = ((256, 512), (2, 8), (10, 24))


def repack_awq_codes(qweight: torch.Tensor) -> torch.Tensor:
    """int32 [K, N/8] to uint8 [N, K/2]; ValueError for another dtype, or if K is odd."""
    require("codes", qweight, (torch.int32,), (-1, -1))
    rows, words = qweight.shape
    require_multiple("rows of codes", rows, 2)
    out = torch.empty(words * 8, rows // 2, dtype=torch.uint8, device=qweight.device)
    for part in row_chunks(rows, words * 8, multiple=2):
        packed = _pack_row_pairs(unpack_awq(qweight[part]))
        out[:, part.start // 2 : part.stop // 2] = packed.t()
    return out


def repack_awq_zeros(qzeros: torch.Tensor, repeat: int = 1) -> torch.Tensor:
    """int32 [K/g, N/8] to uint8 [N/2, K/g * repeat]; ValueError for another dtype."""
    require("zero points", qzeros, (torch.int32,), (-1, -1))
    packed = _pack_row_pairs(unpack_awq(qzeros).t())
    return packed.repeat_interleave(repeat, dim=1)


def transpose_scales(scales: torch.Tensor, repeat: int = 1) -> torch.Tensor:
    """[K/g, N] of any dtype to [N, K/g * repeat]; ValueError unless there are two dims."""
    require("scales", scales, (scales.dtype,), (-1, -1))
    return scales.t().repeat_interleave(repeat, dim=1)


def _pack_row_pairs(codes: torch.Tensor) -> torch.Tensor:
    return codes[0::2] | (codes[1::2] << 4)


def bytes_moved(rows: int, columns: int) -> int:
    """Bytes a perfect kernel reads and writes for the codes of a K x N matrix."""
    return rows * columns
