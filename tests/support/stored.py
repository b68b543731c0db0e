"""Random stored tensors of one matrix in any format, and the floats that they mean.

Written from the formats' descriptions, the slow, obvious way; nothing here knows the loader.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Leaves = dict[str, Tensor]
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)  # which nibble of an AWQ word is column 0, 1, … of its eight
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True, slots=True)
class Storage:
    """How a matrix is stored; `scale_dtype` is what the files use, floats are held wider."""

    kind: str = "plain"
    floats: torch.dtype = torch.bfloat16
    codes: torch.dtype = E4M3
    block: tuple[int, int] = (128, 128)
    group: int = 128
    scale: str = "weight_scale_inv"
    scale_dtype: torch.dtype = torch.float32
    is_static: bool = False
    has_power_scales: bool = False

    @property
    def plain(self) -> "Storage":
        return replace(self, kind="plain")


class Random:
    """Finite values of ordinary size, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self._generator)

    def floats(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=self._generator).to(dtype)

    def e4m3(self, shape: tuple[int, ...]) -> Tensor:
        """Every finite code, both zeros and the largest among them."""
        codes = self.integers(shape, 0, 254)
        return torch.where(codes < 127, codes, codes + 1).to(torch.uint8).view(E4M3)

    def scales(self, shape: tuple[int, ...], dtype: torch.dtype, *, powers: bool = False) -> Tensor:
        """Positive; powers of two where asked."""
        if dtype == E8M0:
            return self.integers(shape, 115, 130).to(torch.uint8).view(E8M0)
        exponents = self.integers(shape, -10, 2).float()
        mantissas = torch.ones(shape) if powers else 1 + self.floats(shape, dtype).float().abs() % 1
        return (mantissas * 2**exponents).to(dtype)


def make(storage: Storage, random: Random, rows: int, columns: int) -> Leaves:
    """The tensors of one matrix as the files have them; scalars are [], scales per row [N, 1]."""
    return _MAKERS[storage.kind](storage, random, rows, columns)


def _plain(storage: Storage, random: Random, rows: int, columns: int) -> Leaves:
    return {"weight": random.floats((rows, columns), storage.floats)}


def _codes(storage: Storage, random: Random, rows: int, columns: int) -> Tensor:
    if storage.codes == E4M3:
        return random.e4m3((rows, columns))
    return random.integers((rows, columns), -128, 128).to(torch.int8)


def _block(storage: Storage, random: Random, rows: int, columns: int) -> Leaves:
    grid = (math.ceil(rows / storage.block[0]), math.ceil(columns / storage.block[1]))
    scales = random.scales(grid, storage.scale_dtype, powers=storage.has_power_scales)
    return {"weight": _codes(storage, random, rows, columns), storage.scale: scales}


def _channel(storage: Storage, random: Random, rows: int, columns: int) -> Leaves:
    leaves = {"weight": _codes(storage, random, rows, columns)}
    leaves["weight_scale"] = random.scales((rows, 1), storage.scale_dtype)
    return leaves | _activations(storage, random)


def _tensor(storage: Storage, random: Random, rows: int, columns: int) -> Leaves:
    leaves = {"weight": _codes(storage, random, rows, columns)}
    leaves["weight_scale"] = random.scales((), storage.scale_dtype)
    return leaves | _activations(storage, random)


def _activations(storage: Storage, random: Random) -> Leaves:
    return {"input_scale": random.scales((), torch.float32)} if storage.is_static else {}


def _awq(storage: Storage, random: Random, rows: int, columns: int) -> Leaves:
    groups = columns // storage.group
    word = (-(2**31), 2**31)
    return {
        "qweight": random.integers((columns, rows // 8), *word).to(torch.int32),
        "qzeros": random.integers((groups, rows // 8), *word).to(torch.int32),
        "scales": random.scales((groups, rows), storage.floats),
    }


def _int4(storage: Storage, random: Random, rows: int, columns: int) -> Leaves:
    return {
        "weight": random.integers((rows, columns // 2), -128, 128).to(torch.int8),
        "weight_scale_inv": random.scales((rows, columns // storage.group), storage.scale_dtype),
        "input_scale": random.scales((), storage.scale_dtype),
    }


def _nvfp4(storage: Storage, random: Random, rows: int, columns: int) -> Leaves:
    return {
        "weight": random.integers((rows, columns // 2), 0, 256).to(torch.uint8),
        "weight_scale": random.scales((rows, columns // 16), torch.float32).to(E4M3),
        "weight_scale_2": random.scales((), torch.float32),
        "input_scale": random.scales((), torch.float32),
    }


_MAKERS: dict[str, Callable[[Storage, Random, int, int], Leaves]] = {
    "plain": _plain,
    "block": _block,
    "channel": _channel,
    "tensor": _tensor,
    "awq": _awq,
    "int4": _int4,
    "nvfp4": _nvfp4,
}


def values(storage: Storage, leaves: Leaves) -> Tensor:
    """The matrix in float32, before it is rounded to any other dtype."""
    if storage.kind == "plain":
        return leaves["weight"].float()
    if storage.kind == "awq":
        return _awq_values(leaves).float()
    if storage.kind == "nvfp4":
        return _nvfp4_values(leaves)
    scale = leaves[storage.scale if storage.kind == "block" else "weight_scale"].float()
    codes = leaves["weight"].float()
    if storage.kind == "block":
        scale = spread(scale, storage.block, codes.shape)
    return codes * scale


def spread(grid: Tensor, block: tuple[int, int], shape: torch.Size) -> Tensor:
    """One scale per element."""
    tall = grid.repeat_interleave(block[0], dim=0)[: shape[0]]
    return tall.repeat_interleave(block[1], dim=1)[:, : shape[1]]


def nibbles(words: Tensor) -> Tensor:
    """AWQ's int32 [R, C/8] as numbers 0 … 15, [R, C]."""
    columns = [words >> (4 * nibble) & 15 for nibble in NIBBLES]
    return torch.stack(columns, dim=-1).flatten(-2)


def _awq_values(leaves: Leaves) -> Tensor:
    """[N, K] in the scales' dtype: an exact difference, one rounding."""
    scales = leaves["scales"]
    group = leaves["qweight"].shape[0] // scales.shape[0]
    zeros = nibbles(leaves["qzeros"]).repeat_interleave(group, dim=0)
    factors = scales.float().repeat_interleave(group, dim=0)
    return ((nibbles(leaves["qweight"]) - zeros).float() * factors).to(scales.dtype).t()


def _nvfp4_values(leaves: Leaves) -> Tensor:
    codes = leaves["weight"].int()
    both = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)
    table = torch.tensor([*E2M1, *(-value for value in E2M1)])
    factors = leaves["weight_scale"].float() * leaves["weight_scale_2"].reshape(())
    return table[both] * factors.repeat_interleave(16, dim=1)
