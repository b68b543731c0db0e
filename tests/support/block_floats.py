"""Tensors in fp8 blocks as the floats that they stand for."""

from collections.abc import Mapping

import torch
from torch import Tensor

BLOCK = 128
SCALE = "_scale_inv"
# derived tensors that keep their blocks: [heads, columns, rows] of the absorbed product
KEPT = {"w_kc": "w_scale_k", "w_vc": "w_scale_v"}


def in_floats(own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One rank's tensors: codes times the scale of their block; everything else as float32."""
    scales = {name: own[scale] for name in own if (scale := _scale_of(name)) in own}
    floats = {
        name: _times_scale(tensor, scales[name]) if name in scales else tensor.float()
        for name, tensor in own.items()
        if not name.endswith((SCALE, *KEPT.values()))
    }
    kept = {name: floats[name].transpose(1, 2) for name in scales if _leaf(name) in KEPT}
    return floats | kept


def _scale_of(name: str) -> str:
    leaf = _leaf(name)
    return name.removesuffix(leaf) + KEPT[leaf] if leaf in KEPT else name + SCALE


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _times_scale(codes: Tensor, scales: Tensor) -> Tensor:
    """The last two dims are cut into blocks; the last block of each may be short."""
    rows = torch.arange(codes.shape[-2]) // BLOCK
    columns = torch.arange(codes.shape[-1]) // BLOCK
    return codes.float() * scales[..., rows[:, None], columns]
