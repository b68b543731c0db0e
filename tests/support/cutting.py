"""What one rank keeps of a stored tensor, and how parts and experts are joined on it.

Written from the description of the sharding; a scale is cut where the weight that it covers is.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from support.stored import E4M3, Leaves, Storage


class Place(NamedTuple):
    """One piece of several equal ones."""

    ways: int
    index: int


WHOLE = Place(1, 0)


def is_scalar(tensor: Tensor) -> bool:
    return tensor.dim() < 2 and tensor.numel() == 1


def rows_dim(storage: Storage) -> int:
    """AWQ stores its matrices turned."""
    return 1 if storage.kind == "awq" else 0


def cut_rows(storage: Storage, tensor: Tensor, place: Place) -> Tensor:
    return tensor if is_scalar(tensor) else _piece(tensor, rows_dim(storage), place)


def cut_columns(storage: Storage, leaf: str, tensor: Tensor, place: Place) -> Tensor:
    covers_row = storage.kind == "channel" and leaf == "weight_scale"
    if is_scalar(tensor) or covers_row:
        return tensor
    return _piece(tensor, 1 - rows_dim(storage), place)


def _piece(tensor: Tensor, dim: int, place: Place) -> Tensor:
    size = tensor.shape[dim]
    assert size % place.ways == 0, (tensor.shape, dim, place)
    return tensor.narrow(dim, place.index * (size // place.ways), size // place.ways)


def held(storage: Storage, leaf: str, tensor: Tensor) -> Tensor:
    """In the dtype that a parameter has: scales are float32, but NVFP4's own e4m3 ones stay."""
    is_own = storage.kind == "nvfp4" and leaf == "weight_scale"
    is_scale = leaf.startswith("weight_scale") or leaf == "input_scale"
    return tensor.float() if is_scale and not is_own else tensor


def columns(storage: Storage, leaves: Leaves, place: Place) -> Leaves:
    """A column-parallel layer: rows of the output are cut."""
    return {leaf: _single(storage, leaf, cut_rows(storage, t, place)) for leaf, t in leaves.items()}


def rows(storage: Storage, leaves: Leaves, place: Place) -> Leaves:
    """A row-parallel layer: columns, the inputs, are cut."""
    return {
        leaf: _single(storage, leaf, cut_columns(storage, leaf, t, place))
        for leaf, t in leaves.items()
    }


def whole(storage: Storage, leaves: Leaves) -> Leaves:
    return columns(storage, leaves, WHOLE)


def _single(storage: Storage, leaf: str, tensor: Tensor) -> Tensor:
    kept = held(storage, leaf, tensor)
    return kept.reshape(1) if is_scalar(kept) else kept


def merged(storage: Storage, parts: Sequence[Leaves], place: Place) -> Leaves:
    """Gate and up: each cut, then one behind the other; a scale per tensor each."""
    joined = {}
    for leaf in parts[0]:
        tensors = [held(storage, leaf, cut_rows(storage, part[leaf], place)) for part in parts]
        joined[leaf] = join(storage, tensors)
    return joined


def join(storage: Storage, tensors: Sequence[Tensor]) -> Tensor:
    if is_scalar(tensors[0]):
        return torch.stack([tensor.reshape(()) for tensor in tensors])
    return torch.cat(list(tensors), dim=rows_dim(storage))


def latent(storage: Storage, parts: Sequence[Leaves]) -> Leaves:
    """q_a and kv_a, whole; scales per tensor become the greatest, and what they scale follows."""
    moved = list(parts)
    if storage.kind in ("tensor", "nvfp4"):
        scaled, scale = _FOLLOWS[storage.kind]
        top = torch.stack([held(storage, scale, part[scale]).reshape(()) for part in parts]).max()
        moved = [{**part, scaled: _rescaled(part[scaled], part[scale], top)} for part in parts]
    joined = merged(storage, moved, WHOLE)
    return {k: t.max().reshape(1) if is_scalar(parts[0][k]) else t for k, t in joined.items()}


_FOLLOWS = {"tensor": ("weight", "weight_scale"), "nvfp4": ("weight_scale", "weight_scale_2")}


def _rescaled(codes: Tensor, scale: Tensor, top: Tensor) -> Tensor:
    """The same values under another scale, as near as e4m3 comes; untouched under their own."""
    own = scale.float().reshape(())
    return codes if own == top else (codes.float() * own / top).clamp(-448, 448).to(E4M3)
