"""fp8 codes of one part of a fused parameter, moved from their own scale to a shared one."""

import torch

from loadscope.kernels.checks import require
from loadscope.kernels.chunks import row_chunks

LARGEST = 448.0

CASES = ((192, 256), (1, 1), (130, 257))


def rescale_codes(
    codes: torch.Tensor, own_scale: torch.Tensor, merged_scale: torch.Tensor
) -> torch.Tensor:
    """e4m3 codes [N, K]: code' = e4m3(clamp(float32(code) * own / merged, -448, 448)).

    The scales are float32 of one element; merged is the largest of the parts' scales, so that no
    code saturates. Where own equals merged the codes themselves are returned, every byte as it
    was, -0 and NaN included. Raises ValueError for other dtypes or shapes. This is a rule of this
    loader: the reference keeps one of the two scales and loses the other.
    """
    require("codes", codes, (torch.float8_e4m3fn,), (-1, -1))
    own, merged = (_scalar(scale, codes.device) for scale in (own_scale, merged_scale))
    if torch.equal(own, merged):
        return codes
    out = torch.empty_like(codes)
    for rows in row_chunks(*codes.shape):
        values = codes[rows].to(torch.float32).mul_(own).div_(merged)
        out[rows] = values.clamp_(-LARGEST, LARGEST).to(codes.dtype)
    return out


def _scalar(scale: torch.Tensor, device: torch.device) -> torch.Tensor:
    # on the codes' device: a division by a number of the host is a multiply elsewhere
    require("scales", scale, (torch.float32,), (), (1,))
    return scale.reshape(()).to(device)


def bytes_moved(rows: int, columns: int) -> int:
    """Bytes a perfect kernel reads and writes."""
    return 2 * rows * columns
