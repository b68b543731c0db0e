"""Block-quantised codes to floats: out[i, j] = round(float32(code) * scale of its block)."""

import torch

ROWS_AT_ONCE = 1024


def dequantise_block(
    codes: torch.Tensor,
    scales: torch.Tensor,
    block: tuple[int, int] = (128, 128),
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Codes [N, K] and float32 scales [ceil(N/bn), ceil(K/bk)] to [N, K] in `dtype`.

    One float32 multiply and one rounding per element (spec 6.1 of the reference loader).
    Raises ValueError if the grid does not cover the matrix.
    """
    rows, columns = codes.shape
    bn, bk = block
    expected = (-(-rows // bn), -(-columns // bk))
    if tuple(scales.shape) != expected:
        raise ValueError(f"scales have shape {list(scales.shape)}; expected {list(expected)}")
    out = torch.empty(rows, columns, dtype=dtype, device=codes.device)
    wide = scales.to(torch.float32).repeat_interleave(bk, dim=1)[:, :columns]
    step = max(bn, ROWS_AT_ONCE // bn * bn)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        tall = wide[start // bn : -(-stop // bn)].repeat_interleave(bn, dim=0)[: stop - start]
        out[start:stop] = (codes[start:stop].to(torch.float32) * tall).to(dtype)
    return out


def bytes_moved(rows: int, columns: int, block: tuple[int, int], out_bytes: int) -> int:
    """Bytes a perfect kernel reads and writes."""
    bn, bk = block
    return rows * columns * (1 + out_bytes) + -(-rows // bn) * -(-columns // bk) * 4


CASES = (
    ((128, 128), (128, 128)),
    ((1, 1), (128, 128)),
    ((576, 7168), (128, 128)),
    ((130, 257), (128, 128)),
    ((32, 96), (16, 32)),
)
