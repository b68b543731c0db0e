"""NVFP4 by nibble: every code, every rounding, in loops."""

import math

import numpy as np
import pytest
import torch

from loadscope.kernels.dequantise_nvfp4 import CASES, bytes_moved, dequantise_nvfp4

# all 24 bits of its mantissa count, so that a product in another order would show
SCALE_2 = math.pi / 100


def e2m1(code: int) -> float:
    """Sign, two bits of exponent (bias 1), one of mantissa."""
    exponent, mantissa = code >> 1 & 3, code & 1
    magnitude = (2 + mantissa) * 2.0 ** (exponent - 2) if exponent else mantissa / 2
    return -magnitude if code & 8 else magnitude


def inputs_of(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    codes = torch.randint(0, 256, (rows, columns // 2), generator=generator, dtype=torch.uint8)
    scales = torch.randint(1, 0x7F, (rows, columns // 16), generator=generator, dtype=torch.uint8)
    return codes, scales.view(torch.float8_e4m3fn)


def slowly(codes: torch.Tensor, scales: torch.Tensor, scale_2: float) -> torch.Tensor:
    """float32 values, one element after the other."""
    raw, wide = codes.numpy(), scales.to(torch.float32).numpy() * np.float32(scale_2)
    values = np.empty((raw.shape[0], raw.shape[1] * 2), dtype=np.float32)
    for i, j in np.ndindex(*values.shape):
        nibble = int(raw[i, j // 2]) >> 4 * (j % 2) & 0xF
        values[i, j] = np.float32(e2m1(nibble)) * wide[i, j // 16]
    return torch.from_numpy(values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("rows", "columns"), CASES[:3])
def test_each_value_is_its_code_times_both_scales(
    rows: int, columns: int, dtype: torch.dtype
) -> None:
    codes, scales = inputs_of(rows, columns)
    found = dequantise_nvfp4(codes, scales, torch.tensor(SCALE_2), dtype)
    assert torch.equal(found, slowly(codes, scales, SCALE_2).to(dtype))


def test_a_matrix_of_several_ranges_of_rows_equals_its_halves() -> None:
    rows, columns = CASES[-1]
    codes, scales = inputs_of(rows, columns)
    scale_2, half = torch.tensor([SCALE_2]), rows // 2
    parts = [
        dequantise_nvfp4(codes[part], scales[part], scale_2)
        for part in (slice(half), slice(half, rows))
    ]
    assert torch.equal(dequantise_nvfp4(codes, scales, scale_2), torch.cat(parts))


def test_the_even_column_is_the_low_nibble_and_code_eight_is_minus_zero() -> None:
    codes = torch.tensor([[0x21, 0x43, 0x65, 0x07, 0xA9, 0xCB, 0xED, 0x8F]], dtype=torch.uint8)
    values = dequantise_nvfp4(codes, torch.ones(1, 1).to(torch.float8_e4m3fn), torch.tensor(1.0))
    expected = [0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6, -0.0]
    assert values.tolist() == [expected]
    assert values.signbit().tolist() == [[False] * 8 + [True] * 8]


def test_shapes_and_dtypes_that_disagree_are_refused() -> None:
    codes, scales = inputs_of(2, 32)
    one = torch.tensor(1.0)
    with pytest.raises(ValueError, match=r"scales have shape \[2, 1\]; expected \[2, 2\]"):
        dequantise_nvfp4(codes, scales[:, :1], one)
    with pytest.raises(ValueError, match="columns of codes are 12; expected a multiple of 8"):
        dequantise_nvfp4(codes[:, :12], scales, one)
    with pytest.raises(ValueError, match=r"second scales have shape \[2\]; expected \[\] or \[1\]"):
        dequantise_nvfp4(codes, scales, torch.ones(2))
    with pytest.raises(ValueError, match="scales have dtype uint8; expected float8_e4m3fn"):
        dequantise_nvfp4(codes, scales.view(torch.uint8), one)


def test_the_bytes_of_a_kernel_are_what_it_must_read_and_write() -> None:
    assert bytes_moved(128, 64, 2) == 128 * 64 // 2 + 128 * 4 + 128 * 64 * 2
