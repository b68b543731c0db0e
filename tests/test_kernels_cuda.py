"""Every kernel gives the same bytes on the accelerator as on the processor."""

from collections.abc import Callable

import pytest
import torch

from loadscope.kernels import dequantise_awq as awq
from loadscope.kernels import dequantise_block as block
from loadscope.kernels import dequantise_channel_int8 as channel_int8
from loadscope.kernels import dequantise_nvfp4 as nvfp4
from loadscope.kernels import merge_scales, quantise_block_ue8m0, quantise_tensor
from loadscope.kernels import repack_awq as repack

pytestmark = pytest.mark.gpu
FN, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz
GENERATOR = torch.Generator().manual_seed(17)
ROWS, COLUMNS = 3000, 704


def random_bytes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=GENERATOR, dtype=torch.uint8)


def floats(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=GENERATOR) + 0.1


def fp8(*shape: int) -> torch.Tensor:
    raw = random_bytes(*shape)
    return raw.masked_fill((raw & 0x7F) == 0x7F, 0x30).view(FN)


def words(*shape: int) -> torch.Tensor:
    return random_bytes(*shape[:-1], shape[-1] * 4).view(torch.int32)


CODES, INT8 = fp8(ROWS, COLUMNS), random_bytes(ROWS, COLUMNS).view(torch.int8)
VALUES = torch.randn(ROWS, COLUMNS, generator=GENERATOR).to(torch.bfloat16)
GRID, COLUMN = floats(24, 6), floats(ROWS, 1)
QWEIGHT, QZEROS, SCALES = words(ROWS, 88), words(3, 88), floats(3, COLUMNS).to(torch.float16)

CALLS: dict[str, tuple[Callable[..., object], tuple[object, ...]]] = {
    "blocks": (block.dequantise_block, (CODES, GRID)),
    "channels": (block.dequantise_block, (INT8, COLUMN, (1, 0), torch.float16)),
    "e8m0": (block.dequantise_block, (CODES, GRID.to(torch.float8_e8m0fnu))),
    "int8": (channel_int8.dequantise_channel_int8, (INT8, COLUMN)),
    "awq": (awq.dequantise_awq, (QWEIGHT, SCALES, QZEROS)),
    "awq_codes": (repack.repack_awq_codes, (QWEIGHT,)),
    "awq_zeros": (repack.repack_awq_zeros, (QZEROS, 2)),
    "awq_scales": (repack.transpose_scales, (SCALES, 2)),
    "float8": (quantise_tensor.input_to_float8, (VALUES, FN)),
    "float8_fnuz": (quantise_tensor.input_to_float8, (VALUES, FNUZ)),
    "fnuz": (quantise_tensor.normalise_fnuz, (CODES, GRID)),
    "block_to_tensor": (quantise_tensor.block_to_tensor, (CODES, GRID, (128, 128))),
    "channel_to_tensor": (quantise_tensor.channel_to_tensor, (CODES, COLUMN)),
    "ue8m0": (quantise_block_ue8m0.quantise_block_ue8m0, (VALUES,)),
    "rescale": (merge_scales.rescale_codes, (CODES, torch.tensor(0.3), torch.tensor(0.7))),
    "nvfp4": (
        nvfp4.dequantise_nvfp4,
        (random_bytes(ROWS, 352), fp8(ROWS, 44), torch.tensor(0.0123)),
    ),
}


def bytes_of(result: object) -> list[bytes]:
    tensors = result if isinstance(result, tuple) else (result,)
    return [t.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes() for t in tensors]


@pytest.mark.parametrize("name", CALLS)
def test_a_kernel_gives_the_same_bytes_on_both_devices(name: str) -> None:
    kernel, arguments = CALLS[name]
    there = [a.cuda() if isinstance(a, torch.Tensor) else a for a in arguments]
    assert bytes_of(kernel(*there)) == bytes_of(kernel(*arguments))
