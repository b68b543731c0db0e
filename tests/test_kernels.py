"""Kernels against the slow, obvious way, on shapes that do not divide evenly."""

import pytest
import torch

from loadscope.kernels.dequantise_block import CASES, bytes_moved, dequantise_block

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def codes_and_scales(
    shape: tuple[int, int], block: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    codes = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    # 0x7F and 0xFF are the two NaN codes of e4m3fn
    codes[(codes & 0x7F) == 0x7F] = 0x30
    grid = [-(-size // per) for size, per in zip(shape, block, strict=True)]
    return codes.view(torch.float8_e4m3fn), torch.rand(grid, generator=generator) + 0.1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "block"), CASES)
def test_each_element_is_its_code_times_the_scale_of_its_block(
    shape: tuple[int, int], block: tuple[int, int], dtype: torch.dtype
) -> None:
    codes, scales = codes_and_scales(shape, block)
    rows = torch.arange(shape[0]) // block[0]
    columns = torch.arange(shape[1]) // block[1]
    expected = (codes.to(torch.float32) * scales[rows][:, columns]).to(dtype)
    assert torch.equal(dequantise_block(codes, scales, block, dtype), expected)


@pytest.mark.parametrize("grid", [(1, 3), (3, 3), (2, 2), (2, 4)])
def test_a_grid_that_does_not_fit_is_refused_with_both_shapes(grid: tuple[int, int]) -> None:
    codes, _scales = codes_and_scales((130, 257), (128, 128))
    with pytest.raises(ValueError, match=rf"\[{grid[0]}, {grid[1]}\]; expected \[2, 3\]"):
        dequantise_block(codes, torch.ones(grid))


def test_the_bytes_of_a_kernel_are_what_it_must_read_and_write() -> None:
    assert bytes_moved(130, 257, (128, 128), 2) == 130 * 257 * (1 + 2) + 2 * 3 * 4
