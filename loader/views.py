"""Questions about a plan: what ranks hold and read, totals, the cells of the heat map."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from loadscope.loader.dtypes import ITEM_BYTES
from loadscope.loader.events import UNEXPECTED_REASONS
from loadscope.loader.outcomes import global_skips, holds, layers_by_fill, routed, uses
from loadscope.loader.place import volume
from loadscope.loader.plan import Plan
from loadscope.loader.tables import Fill, FillKind
from loadscope.loader.topology import Seat, compact, layers_in


@dataclass(frozen=True, slots=True)
class ParameterView:
    """One parameter on one rank; `layer` is None outside the layers."""

    name: str
    rank: int
    target: int
    layer: int | None
    shape: tuple[int, ...]
    dtype: str
    fill: FillKind
    module: str

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def is_counted(self) -> bool:
        """Whether the verdict of a load counts it."""
        return Fill(self.fill).is_written

    @property
    def nbytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]


def parameters(plan: Plan, rank: int) -> Iterator[ParameterView]:
    """All parameters of a rank, kind by kind."""
    seat = plan.seats[rank]
    for index, target in enumerate(plan.targets if plan.shapes else ()):
        held = holds(plan, target, seat) if target.fill.is_allocated else 0
        fills = layers_by_fill(plan, index)
        for layer in layers_in(held):
            yield ParameterView(
                name=target.full_name(layer),
                rank=rank,
                target=index,
                layer=layer if target.stage == "layer" else None,
                shape=plan.shapes[index],
                dtype=target.dtype,
                fill=next(kind for kind, mask in fills.items() if mask >> layer & 1),
                module=target.module,
            )


def parameter_places(plan: Plan) -> dict[str, tuple[int, int]]:
    """Every parameter name of the whole model with its target index and layer."""
    if "parameter_places" not in plan.cache:
        plan.cache["parameter_places"] = {
            target.full_name(layer): (index, layer)
            for index, target in enumerate(plan.targets if plan.shapes else ())
            for layer in layers_in(target.layers)
        }
    places: dict[str, tuple[int, int]] = plan.cache["parameter_places"]
    return places


def find_parameter(plan: Plan, name: str) -> tuple[int, int] | None:
    """Target index and layer of a parameter name."""
    return parameter_places(plan).get(name)


def rank_row(plan: Plan, rank: int) -> dict[str, Any]:
    """What one rank holds and reads; bytes by the plan."""
    seat = plan.seats[rank]
    layers = plan.stage_masks[seat.pp]
    views = list(parameters(plan, rank))
    reads = list(rank_reads(plan, seat))
    return {
        "rank": rank,
        "pp_rank": seat.pp,
        "tp_rank": seat.tp,
        "ep_rank": seat.ep,
        "layers": compact(layers_in(layers)),
        "parameters": len(views),
        "parameter_bytes": sum(view.nbytes for view in views),
        "read_bytes": sum(nbytes for _is_first, _mask, nbytes in reads),
        "tensors": sum(mask.bit_count() for is_first, mask, _nbytes in reads if is_first),
        "derived": sum((d.layers & layers).bit_count() * len(d.outputs) for d in plan.derives),
    }


def rank_reads(plan: Plan, seat: Seat) -> Iterator[tuple[bool, int, int]]:
    """Per use of a tail: whether it is the first, the layers read, the bytes of its slices."""
    for tail, index, source, target in uses(plan):
        placement = plan.placements.get((index, seat.tp))
        here = tail.routed & holds(plan, target, seat)
        if not here or placement is None:
            continue
        if source.experts and placement.slot(tail.expert) is None:
            continue
        read = prod(source.shape) if source.is_read_whole else volume(placement.source_box)
        is_first = index == tail.source
        yield is_first, here, read * ITEM_BYTES[tail.dtype] * here.bit_count()


def totals(plan: Plan) -> dict[str, Any]:
    """Tensors, bytes, outcomes and skips over all ranks; parameters by fill, of the whole model."""
    outcomes = {"loaded": 0, "fused": 0, "held": 0, "skipped": 0, "failed": 0}
    for tail, source, _target in routed(plan):
        held = tail.routed & ~plan.partner_mask(tail) if plan.waits(tail) else 0
        outcomes["held"] += held.bit_count()
        outcomes[source.outcome] += (tail.routed & ~held).bit_count()
    skips = global_skips(plan)
    outcomes["skipped"] = sum(group["count"] for group in skips.values())
    outcomes["failed"] = sum(tail.failed.bit_count() for tail in plan.tails)
    if not plan.targets:
        outcomes["failed"] = len(plan.tensors)
    fills = {"checkpoint": 0, "initial": 0, "shared": 0}
    for index in range(len(plan.targets)):
        for kind, mask in layers_by_fill(plan, index).items():
            fills[kind] = fills.get(kind, 0) + mask.bit_count()
    return {
        "tensors": len(plan.tensors),
        "bytes": sum(t.stop - t.start for t in plan.tensors.values()),
        "outcomes": outcomes,
        "skips": {reason: group["count"] for reason, group in sorted(skips.items())},
        "parameters": fills,
    }


def as_json(plan: Plan) -> dict[str, Any]:
    """The `plan --json` document."""
    return {
        "verdict": plan.verdict,
        "role": plan.role,
        "checkpoint": plan.label,
        "model": plan.model.as_json() if plan.model is not None else None,
        "format": plan.format,
        "layout": plan.layout.as_json(),
        "digest": plan.digest,
        "totals": totals(plan),
        "ranks": [rank_row(plan, r) for r in range(plan.layout.world)] if plan.shapes else [],
        "findings": [finding.as_json() for finding in plan.findings],
        "seconds": {stage: round(s, 6) for stage, s in plan.seconds.items()},
    }


def finding_counts(plan: Plan) -> dict[str, int]:
    counts = {"error": 0, "warning": 0, "note": 0}
    for item in plan.findings:
        counts[item.level] += 1
    return counts


def pairs(plan: Plan, seat: Seat) -> int:
    """Pairs that a seat has to close: both halves there and the parameter held."""
    closed = 0
    for tail, source, target in routed(plan):
        if source.pair is not None and source.name < source.pair:
            both = tail.routed & plan.partner_mask(tail) & holds(plan, target, seat)
            closed += both.bit_count()
    return closed


def is_expected(reason: str) -> bool:
    return reason not in UNEXPECTED_REASONS


def grid(plan: Plan, written: Iterable[tuple[ParameterView, int]]) -> dict[str, Any]:
    """Rows (top, layers), columns (modules) and cells with the elements that are to be written."""
    cells: dict[tuple[int, str], dict[str, int]] = {}
    rows = {layer: row for row, layer in enumerate(plan.layer_numbers, start=1)}
    for view, elements in written:
        row = 0 if view.layer is None else rows[view.layer]
        cell = cells.setdefault((row, view.module), {"total": 0, "parameters": 0})
        cell["total"] += elements
        cell["parameters"] += 1
    shown = {module for _row, module in cells}
    columns = list(dict.fromkeys(t.module for t in plan.targets if t.module in shown))
    places = {name: index for index, name in enumerate(columns)}
    return {
        "rows": ["top", *map(str, plan.layer_numbers)],
        "columns": columns,
        "cells": [
            {"row": row, "column": places[module], **cell} for (row, module), cell in cells.items()
        ],
    }
