"""w_kc, w_vc and their scales of one rank, in plain torch, by platform.

kv_b_proj [heads x (nope + v), kv] is split per head; what stands in the rows before the split
depends on how it is stored and on what the platform multiplies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from support.cutting import Place, columns
from support.stored import E4M3, Leaves, Storage, spread, values

FNUZ = torch.float8_e4m3fnuz
BF16 = torch.bfloat16
WIDE_PLATFORMS = ("cuda", "xpu", "musa")  # turn blocks of 128 into bf16


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one head, and of the latent vector."""

    nope: int
    value: int
    latent: int

    @staticmethod
    def of(config: Mapping[str, Any]) -> "Sizes":
        names = ("qk_nope_head_dim", "v_head_dim", "kv_lora_rank")
        return Sizes(*(config[name] for name in names))


@dataclass(frozen=True, slots=True)
class Expected:
    """A value, and the order of its dims in memory, outermost first."""

    value: Tensor
    order: tuple[int, ...] = ()

    @property
    def strides(self) -> tuple[int, ...]:
        strides, step = [0] * self.value.dim(), 1
        for dim in reversed(self.order):
            strides[dim], step = step, step * self.value.shape[dim]
        return tuple(strides)


def derived(
    storage: Storage, leaves: Leaves, place: Place, sizes: Sizes, platform: str
) -> dict[str, Expected]:
    """Of kv_b_proj's stored tensors, whole model, what one rank derives."""
    local = columns(storage, leaves, place)
    matrix, scale = _matrix(storage, local, platform)
    heads = matrix.unflatten(0, (-1, sizes.nope + sizes.value))
    key, value = heads[:, : sizes.nope], heads[:, sizes.nope :].transpose(1, 2)
    order = (0, 1, 2) if platform == "npu" else (0, 2, 1)
    found = {"w_kc": Expected(key, (0, 2, 1)), "w_vc": Expected(value, order)}
    return found if scale is None else {**found, "w_scale": Expected(scale)}


def kept_blocks(
    storage: Storage, leaves: Leaves, place: Place, sizes: Sizes
) -> dict[str, Expected]:
    """Codes and scales as they are, for a product that takes both; blocks of 128."""
    local = columns(storage, leaves, place)
    heads = local["weight"].view(torch.uint8).unflatten(0, (-1, sizes.nope + sizes.value))
    blocks = local[storage.scale].unflatten(0, (heads.shape[0], -1))
    keys = sizes.nope // 128
    order = (0, 1, 2)
    return {
        "w_kc": Expected(heads[:, : sizes.nope].transpose(1, 2).contiguous().view(E4M3), order),
        "w_vc": Expected(heads[:, sizes.nope :].contiguous().view(E4M3), order),
        "w_scale_k": Expected(blocks[:, :keys].transpose(1, 2), order),
        "w_scale_v": Expected(blocks[:, keys:], order),
    }


def _matrix(storage: Storage, local: Leaves, platform: str) -> tuple[Tensor, Tensor | None]:
    """Rows of all local heads, and the scale that is left."""
    if storage.kind == "plain":
        return local["weight"], None
    if storage.kind == "awq":
        return values(storage, local).to(storage.floats), None
    if storage.kind == "nvfp4":
        return values(storage, local).to(BF16), None
    if storage.codes == torch.int8:
        return _int8(storage, local), None
    if storage.kind == "block" and storage.block == (128, 128) and platform in WIDE_PLATFORMS:
        return values(storage, local).to(BF16), None
    return _one_scale(storage, local, platform)


def _int8(storage: Storage, local: Leaves) -> Tensor:
    """With a scale per row both factors are rounded first, with blocks only the product."""
    if storage.kind == "channel":
        return local["weight"].to(BF16) * local["weight_scale"].to(BF16)
    return values(storage, local).to(BF16)


def _one_scale(storage: Storage, local: Leaves, platform: str) -> tuple[Tensor, Tensor]:
    """fp8 with one scale in all: 448 over the greatest magnitude, in float32."""
    name = storage.scale if storage.kind == "block" else "weight_scale"
    codes, scale = local["weight"], local[name]
    dtype, top = codes.dtype, 448.0
    if platform == "hip-fnuz":
        raw = codes.view(torch.uint8)
        codes = torch.where(raw == 0x80, 0, raw).to(torch.uint8).view(FNUZ)
        scale, dtype, top = scale * 2, FNUZ, 224.0
    grid = spread(scale, storage.block, codes.shape) if storage.kind == "block" else scale
    wide = codes.float() * grid
    amax = wide.abs().max().clamp(min=1e-12)
    factor = (1 / amax) * top
    quantised = (wide * factor).clamp(-top, top).to(dtype)
    left = 1 / factor
    if platform == "musa":
        return (quantised.to(torch.float32) * left).to(BF16), left
    return quantised, left
