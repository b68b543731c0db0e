"""Floats to fp8 with one scale, and codes that change their scale, against loops over bytes."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loadscope.kernels import merge_scales, quantise_tensor
from loadscope.kernels.dequantise_block import dequantise_block
from loadscope.kernels.merge_scales import rescale_codes
from loadscope.kernels.quantise_tensor import (
    block_to_tensor,
    channel_to_tensor,
    input_to_float8,
    normalise_fnuz,
)

FN, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz
LARGEST = {FN: 448.0, FNUZ: 224.0}
F32 = np.float32


def magnitude(byte: int, dtype: torch.dtype) -> float:
    """Four bits of exponent, three of mantissa; the fnuz bias is one more."""
    exponent, mantissa = byte >> 3 & 15, byte & 7
    value = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
    return value / 2 if dtype == FNUZ else value


def nearest_byte(value: np.float32, dtype: torch.dtype) -> int:
    """Nearest magnitude, ties to the even byte; -0 exists in e4m3fn only."""
    last = 0x7E if dtype == FN else 0x7F
    size = abs(float(value))
    byte = min(range(last + 1), key=lambda b: (abs(magnitude(b, dtype) - size), b & 1))
    return byte | 0x80 if np.signbit(value) and (byte or dtype == FN) else byte


def slowly(values: np.ndarray, dtype: torch.dtype) -> tuple[list[list[int]], np.float32]:
    """Bytes and scale of float32 values, every operation rounded to float32."""
    largest = F32(LARGEST[dtype])
    amax = max(F32(1e-12), np.abs(values).max())
    multiplier = F32(F32(1) / amax) * largest
    clamped = np.clip(values * multiplier, -largest, largest)
    rows = [[nearest_byte(value, dtype) for value in row] for row in clamped]
    return rows, F32(1) / multiplier


def floats_of(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(11))


def fp8_of(rows: int, columns: int, dtype: torch.dtype = FN) -> torch.Tensor:
    return floats_of(rows, columns).mul(40).to(dtype)


def raw(codes: torch.Tensor) -> list[list[int]]:
    return codes.view(torch.uint8).tolist()


def test_the_loops_know_every_byte() -> None:
    for dtype, byte in product((FN, FNUZ), range(0x7F)):
        assert torch.tensor(byte, dtype=torch.uint8).view(dtype).item() == magnitude(byte, dtype)


@pytest.mark.parametrize("dtype", [FN, FNUZ])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1), (13, 37)])
def test_floats_become_codes_of_one_scale(
    shape: tuple[int, int], source: torch.dtype, dtype: torch.dtype
) -> None:
    values = floats_of(*shape).to(source)
    codes, scale = input_to_float8(values, dtype)
    expected, expected_scale = slowly(values.to(torch.float32).numpy(), dtype)
    assert (codes.dtype, scale.shape, scale.dtype) == (dtype, (), torch.float32)
    assert raw(codes) == expected
    assert scale.item() == expected_scale


@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=12),
    st.sampled_from([FN, FNUZ]),
)
def test_any_finite_values_are_quantised_as_in_the_loops(
    values: list[float], dtype: torch.dtype
) -> None:
    matrix = torch.tensor([values])
    codes, scale = input_to_float8(matrix, dtype)
    expected, expected_scale = slowly(matrix.numpy(), dtype)
    assert raw(codes) == expected
    assert scale.item() == expected_scale


@pytest.mark.parametrize("dtype", [FN, FNUZ])
def test_all_zeros_stay_zeros_with_a_finite_scale(dtype: torch.dtype) -> None:
    codes, scale = input_to_float8(torch.zeros(3, 5), dtype)
    assert raw(codes) == [[0] * 5] * 3
    assert 0 < scale.item() < 1e-14


@pytest.mark.parametrize("shape", quantise_tensor.CASES)
def test_a_matrix_of_several_ranges_of_rows_has_one_scale(shape: tuple[int, int]) -> None:
    values = floats_of(*shape).to(torch.bfloat16)
    multiplier = values.to(torch.float32).abs().amax().reciprocal() * 448.0
    expected = (values.to(torch.float32) * multiplier).clamp(-448, 448).to(FN)
    codes, scale = input_to_float8(values, FN)
    assert raw(codes) == raw(expected)
    assert torch.equal(scale, multiplier.reciprocal())


@pytest.mark.parametrize("dtype", [FN, FNUZ])
def test_blocks_become_one_scale_without_rounding_in_between(dtype: torch.dtype) -> None:
    codes, scales = fp8_of(130, 257, dtype), torch.rand(2, 3) + 0.1
    values = dequantise_block(codes, scales, (128, 128), torch.float32)
    found, scale = block_to_tensor(codes, scales, (128, 128))
    expected, expected_scale = input_to_float8(values, dtype)
    assert raw(found) == raw(expected)
    assert torch.equal(scale, expected_scale)


def test_a_one_dim_scale_is_per_row_even_if_the_matrix_is_square() -> None:
    codes, scales = fp8_of(9, 9), torch.rand(9) + 0.1
    expected = input_to_float8(codes.to(torch.float32) * scales[:, None], FN)
    for given_scales in (scales, scales[:, None]):
        found = channel_to_tensor(codes, given_scales)
        assert raw(found[0]) == raw(expected[0])
        assert torch.equal(found[1], expected[1])


def test_a_scalar_scale_counts_for_every_row() -> None:
    codes, scale = fp8_of(9, 7), torch.tensor(0.37)
    expected = input_to_float8(codes.to(torch.float32) * scale, FN)
    for given_scale in (scale, scale.view(1)):
        found = channel_to_tensor(codes, given_scale)
        assert raw(found[0]) == raw(expected[0])
        assert torch.equal(found[1], expected[1])


def test_fnuz_bytes_are_the_same_but_for_minus_zero_and_keep_their_values() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(16, 16).view(FN)
    before, scales = codes.view(torch.uint8).clone(), torch.rand(16, 1)
    found, doubled = normalise_fnuz(codes, scales)
    assert sum(raw(found), []) == [0 if byte == 0x80 else byte for byte in range(256)]
    assert torch.equal(codes.view(torch.uint8), before)
    finite = (before & 0x7F) != 0x7F
    values = found.to(torch.float32) * doubled
    assert torch.equal(values[finite], (codes.to(torch.float32) * scales)[finite])


def test_what_cannot_be_quantised_is_refused() -> None:
    with pytest.raises(ValueError, match="codes to make have dtype int8; expected float8_e4m3fn"):
        input_to_float8(torch.ones(2, 2), torch.int8)
    with pytest.raises(ValueError, match="values have dtype int8; expected float32 or"):
        input_to_float8(torch.ones(2, 2, dtype=torch.int8), FN)
    with pytest.raises(ValueError, match=r"shape \[0, 4\]; expected an element"):
        input_to_float8(torch.ones(0, 4), FN)
    with pytest.raises(ValueError, match="codes to make have dtype int8"):
        block_to_tensor(torch.ones(2, 2, dtype=torch.int8), torch.ones(1, 1), (2, 2))
    with pytest.raises(ValueError, match=r"scales have shape \[3\]; expected \[2, 1\] or \[2\]"):
        channel_to_tensor(fp8_of(2, 3), torch.ones(3))
    with pytest.raises(ValueError, match=r"scales have shape \[1, 1\]; expected \[2, 1\] or \[2\]"):
        channel_to_tensor(fp8_of(2, 3), torch.ones(1, 1))
    with pytest.raises(
        ValueError, match="codes have dtype float8_e4m3fnuz; expected float8_e4m3fn"
    ):
        normalise_fnuz(fp8_of(2, 2, FNUZ), torch.ones(()))


ALL_BYTES = torch.arange(256, dtype=torch.uint8).view(4, 64).view(FN)


@pytest.mark.parametrize("scale", [0.3, 0.0, 1e-45, 1e38])
def test_equal_scales_leave_every_byte_as_it_is(scale: float) -> None:
    for shapes in (((), (1,)), ((1,), ())):
        own, merged = (torch.full(shape, scale) for shape in shapes)
        assert sum(raw(rescale_codes(ALL_BYTES, own, merged)), []) == list(range(256))


def test_a_code_is_multiplied_first_and_divided_then() -> None:
    codes = torch.tensor([[52]], dtype=torch.uint8).view(FN)
    own, merged = torch.tensor(0.02404213510453701), torch.tensor(0.6838651895523071)
    assert raw(rescale_codes(codes, own, merged)) == [[13]]
    # where the quotient of the scales would round first
    assert raw((codes.to(torch.float32) * (own / merged)).to(FN)) == [[14]]


@given(st.floats(2.0**-20, 1.0, width=32), st.floats(2.0**-20, 1.0, width=32))
def test_other_scales_give_the_nearest_code_or_the_largest(own: float, merged: float) -> None:
    found = raw(rescale_codes(ALL_BYTES, torch.tensor(own), torch.tensor(merged)))
    for byte, code in enumerate(sum(found, [])):
        value = F32(magnitude(byte & 0x7F, FN)) * F32(own) / F32(merged)
        signed = np.copysign(min(value, F32(448)), -1 if byte & 0x80 else 1)
        is_nan = byte & 0x7F == 0x7F
        same = own == merged
        assert (
            code & 0x7F == 0x7F if is_nan else code == (byte if same else nearest_byte(signed, FN))
        )


@pytest.mark.parametrize("shape", merge_scales.CASES)
def test_a_larger_scale_for_all_keeps_the_values_close(shape: tuple[int, int]) -> None:
    codes, own, merged = fp8_of(*shape), torch.tensor(0.3), torch.tensor(0.7)
    before = codes.to(torch.float32) * own
    after = rescale_codes(codes, own, merged).to(torch.float32) * merged
    # half a step of three mantissa bits; half the smallest code
    assert torch.all((after - before).abs() <= before.abs() / 16 + 0.7 * 2.0**-10)


def test_scales_of_more_than_one_element_and_other_codes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scales have shape \[2\]; expected \[\] or \[1\]"):
        rescale_codes(ALL_BYTES, torch.ones(2), torch.ones(()))
    with pytest.raises(ValueError, match="codes have dtype int8; expected float8_e4m3fn"):
        rescale_codes(ALL_BYTES.view(torch.int8), torch.ones(()), torch.ones(()))


def test_the_bytes_of_a_kernel_are_what_it_must_read_and_write() -> None:
    assert quantise_tensor.bytes_moved(3, 5, 2) == 15 * 2 * 2 + 15
    assert merge_scales.bytes_moved(3, 5) == 30
