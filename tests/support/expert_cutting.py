"""Stacked experts of one rank, out of the stored tensors of single experts."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from support.cutting import Place, cut_columns, cut_rows, held, is_scalar, join
from support.stored import Leaves, Storage, nibbles


class Expert(NamedTuple):
    """One expert's three matrices."""

    gate: Leaves
    up: Leaves
    down: Leaves


class Held(NamedTuple):
    """What a rank holds: whole experts in slot order, each cut at `place`; `every` of the model."""

    experts: Sequence[Expert]
    every: Sequence[Expert]
    place: Place
    small_group: int | None = None


def stacked(storage: Storage, rank: Held) -> Leaves:
    """w13_* and w2_* parameters of one layer."""
    found: Leaves = {}
    for leaf in rank.experts[0].gate:
        if leaf == "input_scale":
            found |= _activations(storage, rank)
            continue
        found[f"w13_{leaf}"] = torch.stack([_w13(storage, e, leaf, rank) for e in rank.experts])
        found[f"w2_{leaf}"] = torch.stack([_w2(storage, e, leaf, rank) for e in rank.experts])
    return found


def _w13(storage: Storage, expert: Expert, leaf: str, rank: Held) -> Tensor:
    parts = [held(storage, leaf, part[leaf]) for part in (expert.gate, expert.up)]
    if rank.small_group is not None:
        turned = [_wna16(storage, leaf, part, rank.small_group) for part in parts]
        return torch.cat([_equal_piece(part, 0, rank.place) for part in turned])
    return join(storage, [cut_rows(storage, part, rank.place) for part in parts])


def _w2(storage: Storage, expert: Expert, leaf: str, rank: Held) -> Tensor:
    tensor = held(storage, leaf, expert.down[leaf])
    if rank.small_group is not None:
        turned = _wna16(storage, leaf, tensor, rank.small_group)
        return _equal_piece(turned, 1, rank.place)
    kept = cut_columns(storage, leaf, tensor, rank.place)
    return kept.reshape(()) if is_scalar(kept) else kept


def _equal_piece(tensor: Tensor, dim: int, place: Place) -> Tensor:
    return tensor.chunk(place.ways, dim=dim)[place.index]


def _wna16(storage: Storage, leaf: str, tensor: Tensor, small: int) -> Tensor:
    """AWQ's [K, N] layout as [N, K], two codes to a byte: along K, but zeros along N."""
    times = storage.group // small
    if leaf == "scales":
        return tensor.t().repeat_interleave(times, dim=1)
    numbers = nibbles(tensor).t().to(torch.uint8)
    if leaf == "qweight":
        return numbers[:, 0::2] + 16 * numbers[:, 1::2]
    return (numbers[0::2] + 16 * numbers[1::2]).repeat_interleave(times, dim=1)


def _activations(storage: Storage, rank: Held) -> Leaves:
    """Gate and up share an input, so the greater scale counts for both."""
    dtype = torch.bfloat16 if storage.kind == "int4" else torch.float32
    experts = rank.every if storage.kind == "nvfp4" else rank.experts
    first = torch.stack([_greater(expert, dtype) for expert in experts])
    second = torch.stack([e.down["input_scale"].to(dtype).reshape(()) for e in experts])
    has_two = storage.kind in ("nvfp4", "int4")
    both = torch.stack([first, first], dim=1) if has_two else first
    return {"w13_input_scale": both, "w2_input_scale": second}


def _greater(expert: Expert, dtype: torch.dtype) -> Tensor:
    scales = [part["input_scale"].to(dtype).reshape(()) for part in (expert.gate, expert.up)]
    return torch.stack(scales).max()


def local_slots(rank_in_group: int, tp: int, ep: int, experts: int) -> tuple[range, Place]:
    """(experts of one rank, its piece of each): a rank's group counts before its place in it."""
    ways = tp // ep
    group, index = divmod(rank_in_group, ways)
    each = experts // ep
    return range(group * each, (group + 1) * each), Place(ways, index)


def small_group(group: int, width: int, hidden: int) -> int:
    """Halved until it divides both sides of an expert's piece, never below 32."""
    while group > 32 and (width % group or hidden % group):
        group //= 2
    return group


def as_experts(linears: Mapping[str, Leaves], prefix: str, names: Sequence[str]) -> list[Expert]:
    """Experts by module name, gate_proj, up_proj and down_proj of each."""
    return [
        Expert(*(linears[f"{prefix}{n}.{m}"] for m in ("gate_proj", "up_proj", "down_proj")))
        for n in names
    ]
