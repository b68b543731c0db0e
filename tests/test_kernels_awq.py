"""AWQ words by nibble: what the loader reads is what a packer of plain Python integers wrote."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loadscope.kernels import dequantise_awq as awq
from loadscope.kernels import repack_awq as repack
from loadscope.kernels.dequantise_awq import dequantise_awq, unpack_awq
from loadscope.kernels.repack_awq import repack_awq_codes, repack_awq_zeros, transpose_scales

Matrix = list[list[int]]
# the column that each nibble of a word holds, low to high: how AWQ's own packer writes
COLUMN_OF_NIBBLE = (0, 2, 4, 6, 1, 3, 5, 7)


def codes_of(rows: int, columns: int, seed: int = 3) -> Matrix:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 16, (rows, columns), generator=generator).tolist()


def packed(codes: Matrix) -> torch.Tensor:
    """Rows of codes as int32 words."""
    words = [
        [
            sum(row[start + column] << 4 * at for at, column in enumerate(COLUMN_OF_NIBBLE))
            for start in range(0, len(row), 8)
        ]
        for row in codes
    ]
    signed = [[word - (1 << 32) if word >= 1 << 31 else word for word in row] for row in words]
    return torch.tensor(signed, dtype=torch.int32)


def scales_of(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.rand(rows, columns, generator=generator).to(dtype)


@given(st.integers(0, 7), st.integers(0, 15))
def test_every_nibble_comes_back_at_its_column(column: int, code: int) -> None:
    codes = [[code if at == column else 0 for at in range(8)]]
    assert unpack_awq(packed(codes)).tolist() == codes


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns", "group"), awq.CASES)
def test_each_value_is_code_minus_zero_times_scale_rounded_once(
    rows: int, columns: int, group: int, dtype: torch.dtype
) -> None:
    codes, zeros = codes_of(rows, columns), codes_of(rows // group, columns, seed=4)
    scales = scales_of(rows // group, columns, dtype)
    exact = scales.to(torch.float64).tolist()
    expected = [
        [(code - zeros[i // group][j]) * exact[i // group][j] for j, code in enumerate(row)]
        for i, row in enumerate(codes)
    ]
    found = dequantise_awq(packed(codes), scales, packed(zeros))
    assert found.dtype == dtype
    assert torch.equal(found, torch.tensor(expected, dtype=torch.float64).to(dtype))


def test_a_matrix_of_several_ranges_of_rows_equals_its_rows_alone() -> None:
    # 3000 columns: an odd number of rows would fit into a range
    codes, zeros = codes_of(360, 3000), packed(codes_of(3, 3000, seed=4))
    words, scales = packed(codes), scales_of(3, 3000, torch.float16)
    whole = dequantise_awq(words, scales, zeros)
    for group in range(3):
        rows, at = slice(120 * group, 120 * group + 120), slice(group, group + 1)
        assert torch.equal(whole[rows], dequantise_awq(words[rows], scales[at], zeros[at]))
    pairs = torch.tensor(codes)[0::2] | torch.tensor(codes)[1::2] << 4
    assert torch.equal(repack_awq_codes(words), pairs.t().to(torch.uint8))


@pytest.mark.parametrize(("rows", "columns"), repack.CASES)
def test_repacked_codes_run_along_a_row_low_nibble_first(rows: int, columns: int) -> None:
    codes = codes_of(rows, columns)
    expected = [
        [codes[at][column] | codes[at + 1][column] << 4 for at in range(0, rows, 2)]
        for column in range(columns)
    ]
    found = repack_awq_codes(packed(codes))
    assert found.dtype == torch.uint8
    assert found.tolist() == expected


@pytest.mark.parametrize("repeat", [1, 2, 3])
def test_repacked_zeros_run_down_a_column_and_repeat_by_group(repeat: int) -> None:
    zeros = codes_of(5, 24)
    expected = [
        [zeros[at // repeat][row] | zeros[at // repeat][row + 1] << 4 for at in range(5 * repeat)]
        for row in range(0, 24, 2)
    ]
    assert repack_awq_zeros(packed(zeros), repeat).tolist() == expected


def test_scales_are_transposed_and_each_group_repeated_in_place() -> None:
    scales = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=torch.float16)
    assert transpose_scales(scales).tolist() == [[1, 4], [2, 5], [3, 6]]
    repeated = transpose_scales(scales, 2)
    assert repeated.tolist() == [[1, 1, 4, 4], [2, 2, 5, 5], [3, 3, 6, 6]]
    assert repeated.dtype == scales.dtype
    assert repeated.is_contiguous()
    assert transpose_scales(scales).is_contiguous()


@given(st.integers(1, 3), st.integers(1, 3), st.sampled_from([2, 4]), st.integers(0, 99))
def test_the_two_layouts_hold_the_same_values(
    groups: int, words: int, group: int, seed: int
) -> None:
    rows, columns = groups * group, words * 8
    qweight, qzeros = packed(codes_of(rows, columns, seed)), packed(codes_of(groups, columns, 1))
    scales = scales_of(groups, columns, torch.float16)
    bytes_, half_zeros = repack_awq_codes(qweight), repack_awq_zeros(qzeros, 2)
    codes = torch.stack((bytes_ & 15, bytes_ >> 4), dim=2).flatten(1).int()
    zeros = torch.stack((half_zeros & 15, half_zeros >> 4), dim=1).flatten(0, 1).int()
    at = torch.arange(rows) // (group // 2)
    values = (codes - zeros[:, at]) * transpose_scales(scales, 2)[:, at]
    assert torch.equal(values.t(), dequantise_awq(qweight, scales, qzeros))


def test_shapes_and_dtypes_that_disagree_are_refused() -> None:
    words, zeros = torch.zeros(6, 2, dtype=torch.int32), torch.zeros(3, 2, dtype=torch.int32)
    scales = torch.ones(3, 16, dtype=torch.float16)
    with pytest.raises(ValueError, match="codes have dtype int64; expected int32"):
        dequantise_awq(words.long(), scales, zeros)
    with pytest.raises(ValueError, match=r"scales have shape \[3, 8\]; expected \[any, 16\]"):
        dequantise_awq(words, scales[:, :8], zeros)
    with pytest.raises(ValueError, match=r"zero points have shape \[2, 2\]; expected \[3, 2\]"):
        dequantise_awq(words, scales, zeros[:2])
    with pytest.raises(ValueError, match="rows of codes are 5; expected a multiple of 3"):
        dequantise_awq(words[:5], scales, zeros)
    with pytest.raises(ValueError, match="rows of codes are 5; expected a multiple of 2"):
        repack_awq_codes(words[:5])
    with pytest.raises(ValueError, match=r"scales have shape \[16\]; expected \[any, any\]"):
        transpose_scales(scales[0])


def test_the_bytes_of_a_kernel_are_what_it_must_read_and_write() -> None:
    assert (
        awq.bytes_moved(128, 64, 32, 2) == 128 * 64 // 2 + 4 * 64 // 2 + 4 * 64 * 2 + 128 * 64 * 2
    )
    assert repack.bytes_moved(128, 64) == 2 * 128 * 64 // 2
