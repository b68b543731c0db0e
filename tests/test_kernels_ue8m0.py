"""bf16 to fp8 blocks with power-of-two scales: bits against Python's own floats, tile by tile."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loadscope.kernels.dequantise_block import dequantise_block
from loadscope.kernels.quantise_block_ue8m0 import (
    CASES,
    bytes_moved,
    ceil_pow2,
    quantise_block_ue8m0,
)

FN = torch.float8_e4m3fn


def power_not_below(x: float) -> float:
    mantissa, exponent = math.frexp(abs(x))
    power = exponent - 1 if mantissa == 0.5 else exponent
    return 2.0 ** min(max(power, -126), 127) if x else 2.0**-126


def values_of(rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(13)
    # tiles of very different size: each scale is its own
    spread = torch.rand(rows, columns, generator=generator).mul(20).sub(10).exp2()
    return torch.randn(rows, columns, generator=generator).mul(spread).to(torch.bfloat16)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_the_power_of_two_is_the_smallest_not_below(x: float) -> None:
    assert ceil_pow2(torch.tensor(x)).item() == power_not_below(x)


@pytest.mark.parametrize("exponent", [-126, -22, -1, 0, 1, 100, 127])
def test_powers_of_two_stay_and_the_next_float_doubles(exponent: int) -> None:
    power = torch.tensor(2.0**exponent)
    above = torch.nextafter(power, torch.tensor(math.inf))
    assert ceil_pow2(power) == power
    assert ceil_pow2(above).item() == 2.0 ** min(exponent + 1, 127)


@pytest.mark.parametrize("shape", CASES)
def test_each_tile_has_its_own_scale_and_codes(shape: tuple[int, int]) -> None:
    values = values_of(*shape)
    codes, scales = quantise_block_ue8m0(values)
    assert (codes.dtype, scales.dtype) == (FN, torch.float32)
    assert tuple(scales.shape) == (-(-shape[0] // 128), -(-shape[1] // 128))
    for i, j in torch.cartesian_prod(*(torch.arange(size) for size in scales.shape)).tolist():
        at = slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128)
        tile = values[at].to(torch.float32)
        amax = max(tile.abs().max().item(), torch.tensor(1e-4).item())
        scale = power_not_below((torch.tensor(amax) / 448.0).item())
        assert scales[i, j].item() == scale
        expected = (tile / scale).to(FN)
        assert torch.equal(codes[at].view(torch.uint8), expected.view(torch.uint8))


def test_zeros_get_the_smallest_scale() -> None:
    codes, scales = quantise_block_ue8m0(torch.zeros(1, 129, dtype=torch.bfloat16))
    assert not codes.view(torch.uint8).any()
    assert scales.tolist() == [[2.0**-22, 2.0**-22]]


def test_every_finite_magnitude_of_bf16_fits_without_saturation() -> None:
    bits = torch.arange(0x7F80, dtype=torch.int16).view(torch.bfloat16)
    amax = bits.to(torch.float32).clamp(min=1e-4)
    scales = ceil_pow2(amax / 448.0)
    assert torch.all(amax / scales <= 448)
    # a device that multiplies by the reciprocal of 448 finds the same powers
    assert torch.equal(scales, ceil_pow2(amax * (torch.tensor(1.0) / 448.0)))


@pytest.mark.parametrize("amax", [448.0, -448.0, 3.5, 2.0**-30, -(2.0**100)])
def test_the_largest_of_a_tile_comes_back_within_half_a_step(amax: float) -> None:
    codes, scales = quantise_block_ue8m0(torch.full((1, 1), amax, dtype=torch.bfloat16))
    found = dequantise_block(codes, scales, dtype=torch.float32).item()
    assert abs(found - amax) <= max(abs(amax) / 16, 2.0**-32)


def test_a_second_pass_changes_codes_but_not_values() -> None:
    codes, scales = quantise_block_ue8m0(torch.full((1, 1), 225.0, dtype=torch.bfloat16))
    again, half = quantise_block_ue8m0(dequantise_block(codes, scales))
    assert (codes.to(torch.float32).item(), scales.item()) == (224.0, 1.0)
    assert (again.to(torch.float32).item(), half.item()) == (448.0, 0.5)


def test_a_transposed_view_gives_what_its_copy_gives() -> None:
    values = values_of(257, 130).t()
    found, expected = quantise_block_ue8m0(values), quantise_block_ue8m0(values.contiguous())
    assert torch.equal(found[0].view(torch.uint8), expected[0].view(torch.uint8))
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, FN])
def test_only_bf16_is_quantised(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="expected bfloat16"):
        quantise_block_ue8m0(torch.ones(2, 2).to(dtype))


def test_the_bytes_of_a_kernel_are_what_it_must_read_and_write() -> None:
    assert bytes_moved(130, 257) == 130 * 257 * 3 + 2 * 3 * 4
