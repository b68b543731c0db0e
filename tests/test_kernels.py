"""Codes with scales to floats, against the slow, obvious way, on shapes that divide unevenly."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loadscope.kernels import dequantise_channel_int8 as channel_int8
from loadscope.kernels.chunks import ELEMENTS_AT_ONCE, row_chunks
from loadscope.kernels.dequantise_block import CASES, bytes_moved, dequantise_block

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
CODES = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.int8)
Pair = tuple[int, int]


def codes_of(shape: Pair, dtype: torch.dtype = torch.float8_e4m3fn) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    codes = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    # 0x7F and 0xFF are the two NaN codes of e4m3fn, 0x80 is that of e4m3fnuz
    codes[((codes & 0x7F) == 0x7F) | (codes == 0x80)] = 0x30
    return codes.view(dtype)


def scales_of(shape: Pair, block: Pair) -> torch.Tensor:
    grid = [-(-size // (per or size)) for size, per in zip(shape, block, strict=True)]
    return torch.rand(grid, generator=torch.Generator().manual_seed(8)) + 0.1


def spread(scales: torch.Tensor, shape: Pair, block: Pair) -> torch.Tensor:
    """The scale of every element."""
    rows, columns = (
        torch.arange(size) // (per or size) for size, per in zip(shape, block, strict=True)
    )
    return scales[rows][:, columns]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(("shape", "block"), CASES)
def test_each_element_is_its_code_times_the_scale_of_its_block(
    shape: Pair, block: Pair, code: torch.dtype, dtype: torch.dtype
) -> None:
    codes, scales = codes_of(shape, code), scales_of(shape, block)
    expected = (codes.to(torch.float32) * spread(scales, shape, block)).to(dtype)
    assert torch.equal(dequantise_block(codes, scales, block, dtype), expected)


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(0, 17), st.integers(0, 17)),
)
def test_any_block_fits_any_matrix(shape: Pair, block: Pair) -> None:
    codes, scales = codes_of(shape), scales_of(shape, block)
    expected = codes.to(torch.float32) * spread(scales, shape, block)
    assert torch.equal(dequantise_block(codes, scales, block, torch.float32), expected)


def test_a_block_of_zero_lets_the_scales_leave_out_whole_dims() -> None:
    codes, column, one = codes_of((7, 7)), scales_of((7, 7), (1, 0)), torch.tensor(0.3)
    per_row = dequantise_block(codes, column, (1, 0))
    assert torch.equal(dequantise_block(codes, column.flatten(), (1, 0)), per_row)
    expected = (codes.to(torch.float32) * one).to(torch.bfloat16)
    for scales in (one, one.view(1), one.view(1, 1)):
        assert torch.equal(dequantise_block(codes, scales, (0, 0)), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_scales_are_widened_before_the_multiply(dtype: torch.dtype) -> None:
    codes, scales = codes_of((130, 257)), scales_of((130, 257), (128, 128)).to(dtype)
    wide = dequantise_block(codes, scales.to(torch.float32))
    assert torch.equal(dequantise_block(codes, scales), wide)


def test_e8m0_scales_are_powers_of_two() -> None:
    codes = torch.full((1, 254), 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn)
    raw = torch.arange(1, 255, dtype=torch.uint8).view(1, 254)
    values = dequantise_block(codes, raw.view(torch.float8_e8m0fnu), (1, 1), torch.float32)
    assert values.tolist() == [[2.0 ** (byte - 127) for byte in range(1, 255)]]


def test_a_transposed_view_gives_what_its_copy_gives() -> None:
    codes, scales = codes_of((257, 130)).t(), scales_of((130, 257), (128, 128))
    assert torch.equal(
        dequantise_block(codes, scales), dequantise_block(codes.contiguous(), scales)
    )


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_an_empty_matrix_stays_empty(shape: Pair) -> None:
    codes = torch.empty(shape, dtype=torch.int8)
    grid = [-(-size // 2) for size in shape]
    assert dequantise_block(codes, torch.ones(grid), (2, 2)).shape == shape


@pytest.mark.parametrize("grid", [(1, 3), (3, 3), (2, 2), (2, 4), (6,), ()])
def test_a_grid_that_does_not_fit_is_refused_with_both_shapes(grid: tuple[int, ...]) -> None:
    found = ", ".join(map(str, grid))
    with pytest.raises(ValueError, match=rf"\[{found}\]; expected \[2, 3\]"):
        dequantise_block(codes_of((130, 257)), torch.ones(grid))


@pytest.mark.parametrize("block", [(1, 128), (0, 128), (128, 128)])
def test_one_dim_scales_are_refused_where_columns_have_blocks(block: Pair) -> None:
    with pytest.raises(ValueError, match=r"scales have shape \[3\]"):
        dequantise_block(codes_of((3, 384)), torch.ones(3), block)


def test_other_dtypes_are_refused() -> None:
    codes, scales = codes_of((4, 4)), torch.ones(1, 1)
    with pytest.raises(ValueError, match="codes have dtype uint8; expected float8_e4m3fn or"):
        dequantise_block(codes.view(torch.uint8), scales)
    with pytest.raises(ValueError, match="scales have dtype uint8; expected float32 or"):
        dequantise_block(codes, scales.to(torch.uint8))


@given(st.integers(0, 10_000), st.integers(0, 3_000_000), st.sampled_from([1, 2, 128]))
def test_ranges_of_rows_cover_a_matrix_once_and_are_small(
    rows: int, columns: int, multiple: int
) -> None:
    parts = list(row_chunks(rows, columns, multiple))
    edges = [0, *(part.stop for part in parts)]
    assert [part.start for part in parts] == edges[:-1]
    assert edges[-1] == rows
    assert all(part.start % multiple == 0 for part in parts)
    largest = max(ELEMENTS_AT_ONCE, multiple * columns)
    assert all((part.stop - part.start) * columns <= largest for part in parts)


@pytest.mark.parametrize("shape", channel_int8.CASES)
def test_int8_channels_round_the_scale_before_they_multiply(shape: Pair) -> None:
    codes, scales = codes_of(shape, torch.int8), scales_of(shape, (1, 0))
    rounded = scales.to(torch.bfloat16).to(torch.float32).numpy()
    exact = codes.numpy().astype(np.float32) * rounded
    expected = torch.from_numpy(exact).to(torch.bfloat16)
    assert torch.equal(channel_int8.dequantise_channel_int8(codes, scales), expected)


def test_int8_channels_and_int8_blocks_differ() -> None:
    codes, scales = torch.full((1, 1), 127, dtype=torch.int8), torch.full((1, 1), 1.003)
    as_channel = channel_int8.dequantise_channel_int8(codes, scales)
    assert as_channel.item() == 127.0
    assert dequantise_block(codes, scales, (1, 0)).item() == 127.5


@pytest.mark.parametrize("shape", [(4,), (1, 4), (5, 1), ()])
def test_int8_channels_refuse_scales_that_are_not_one_per_row(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected \[4, 1\]"):
        channel_int8.dequantise_channel_int8(codes_of((4, 4), torch.int8), torch.ones(shape))


def test_the_bytes_of_a_kernel_are_what_it_must_read_and_write() -> None:
    assert bytes_moved(130, 257, (128, 128), 2) == 130 * 257 * (1 + 2) + 2 * 3 * 4
    assert bytes_moved(130, 257, (1, 0), 2) == 130 * 257 * (1 + 2) + 130 * 4
    assert channel_int8.bytes_moved(130, 257, 2) == bytes_moved(130, 257, (1, 0), 2)
