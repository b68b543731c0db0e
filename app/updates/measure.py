"""How much an update changes: old values against new ones, parameter by parameter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from loadscope.app.updates.role_loads import RoleLoad
from loadscope.loader.change import ChangeTable, compare_stores
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.views import parameters

Old = Mapping[str, Mapping[int, Mapping[str, torch.Tensor]]]


@dataclass(frozen=True, slots=True)
class Measured:
    """The `delta` of a record, and parameters that hold NaN or Inf only since."""

    document: dict[str, Any]
    broken: list[str]


def measure(update: Sequence[RoleLoad], old: Old) -> Measured | None:
    """Of all roles; None if no old values are there. `old`: of those that are not second copies."""
    table = ChangeTable()
    broken: list[str] = []
    has_old = False
    for one in update:
        for rank, new in one.written.items():
            live = one.stores[rank]
            before = live.parameters if new is not live else old.get(one.role, {}).get(rank, {})
            if not before:
                continue
            has_old = True
            broken += _compare(one, rank, before, new, table)
    if not has_old:
        return None
    changed = [name for one in update for name in _dtype_changed(one)]
    return Measured({**table.as_json(), "dtype_changed": changed}, broken)


def _compare(
    one: RoleLoad,
    rank: int,
    before: Mapping[str, torch.Tensor],
    new: ParameterStore,
    table: ChangeTable,
) -> list[str]:
    views = [view for view in parameters(one.plan, rank) if new.is_new(view.name)]
    return compare_stores(one.plan, rank, before, new.parameters, views, one.role, table)


def _dtype_changed(one: RoleLoad) -> list[str]:
    """Tensors that are stored in another dtype than those that the live weights came from."""
    live = next(iter(one.stores.values()), None)
    if live is None:
        return []
    return [
        name
        for name, tensor in one.plan.tensors.items()
        if (was := live.plan.tensors.get(name)) is not None and was.dtype != tensor.dtype
    ]
