"""What a whole checkpoint brings to the roles of a process, in numbers, by layers, not by names.

The same numbers as `Arrivals` has once every tensor of it has come, without asking for each.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

from loadscope.loader.dtypes import ITEM_BYTES
from loadscope.loader.groups import Modules
from loadscope.loader.outcomes import global_skip_masks, routed
from loadscope.loader.plan import Plan
from loadscope.loader.resolve import Tail
from loadscope.loader.topology import layers_in

Key = tuple[str, bool, str]
LOST = "no_destination"


def census(plans: Sequence[Plan]) -> dict[str, Any]:
    """`tensors`, `bytes`, `ignored` by reason, `groups` of more than one tensor.

    `plans`: of one checkpoint, one per role; all of them must pass.
    """
    taken: dict[Key, int] = {}
    count = nbytes = 0
    for plan in plans:
        for tail, _source, _target in routed(plan):
            new = tail.routed & ~taken.get(_key(tail), 0)
            taken[_key(tail)] = taken.get(_key(tail), 0) | new
            count += new.bit_count()
            nbytes += _bytes(tail, new)
    return {
        "tensors": count,
        "bytes": nbytes,
        "ignored": _ignored(plans, taken),
        "groups": _count_groups(plans),
    }


def _key(tail: Tail) -> Key:
    return tail.wrapper, tail.is_top, tail.text


def _bytes(tail: Tail, mask: int) -> int:
    each = ITEM_BYTES[tail.dtype]
    return sum((mask & m).bit_count() * prod(shape) * each for shape, m in tail.shapes.items())


def _ignored(plans: Sequence[Plan], taken: dict[Key, int]) -> dict[str, int]:
    """What no role takes. A name that any does not know counts so; else the role in whose layers
    it is knows best.
    """
    found: dict[str, int] = {}
    told = dict(taken)
    for is_meant in (_is_lost, _is_own, _is_any):
        for plan in plans:
            for tail in plan.tails:
                for mask, reason in global_skip_masks(plan, tail):
                    new = mask & ~told.get(_key(tail), 0) if is_meant(plan, reason) else 0
                    if new:
                        told[_key(tail)] = told.get(_key(tail), 0) | new
                        found[reason] = found.get(reason, 0) + new.bit_count()
    return found


def _is_lost(_plan: Plan, reason: str) -> bool:
    return reason == LOST


def _is_own(plan: Plan, reason: str) -> bool:
    return reason != plan.beyond_reason


def _is_any(_plan: Plan, _reason: str) -> bool:
    return True


def _count_groups(plans: Sequence[Plan]) -> int:
    """Layers that have the same tails have as many groups: one of each sort is looked at."""
    places: dict[int | None, list[tuple[int, int]]] = {}
    tails = [list(routed(plan)) for plan in plans]
    for role, rows in enumerate(tails):
        for number, (tail, _source, _target) in enumerate(rows):
            for layer in [None] if tail.is_top else layers_in(tail.routed):
                places.setdefault(layer, []).append((role, number))
    alike: dict[tuple[tuple[int, int], ...], list[int | None]] = {}
    for layer, here in places.items():
        alike.setdefault(tuple(here), []).append(layer)
    total = 0
    for found, layers in alike.items():
        modules = Modules()
        for role, number in found:
            modules.add_tail(plans[role], tails[role][number][0], layers[0] or 0)
        total += len(layers) * sum(not group.is_trivial for group in modules.groups())
    return total
