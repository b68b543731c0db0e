"""One name's story out of a plan: forward from a checkpoint tensor, backward from a parameter."""

import difflib
import re
from collections.abc import Iterator
from typing import Any

from loadscope.loader.outcomes import deliveries, fill_of, holds, outcome, rank_outcome, uses_of
from loadscope.loader.place import Box
from loadscope.loader.plan import Plan
from loadscope.loader.resolve import Tail
from loadscope.loader.schema import Source
from loadscope.loader.tables import Fill, FillKind
from loadscope.loader.topology import layers_in
from loadscope.loader.views import find_parameter, parameters

DOTTED = re.compile(r"[A-Za-z_][\w]*(?:\.[\w]+)+")
# what loaders write into names while they rename; undone to find the name that was meant
HALF_RENAMES = (
    ("gate_gate_up_proj", "gate_up_proj"),
    ("mlp.gate_up_proj", "mlp.gate_proj"),
    ("gate_up_proj", "gate_proj"),
    ("gate_up_proj", "up_proj"),
    (".w13_", ".gate_proj."),
    (".w2_", ".down_proj."),
    ("fused_qkv_a_proj_with_mqa", "q_a_proj"),
    ("q_a_proj_with_mqa", "kv_a_proj_with_mqa"),
    ("wk_weights_proj", "wk"),
    ("weight_scale_inv", "weight_scale"),
    ("weight_scale", "weight_scale_inv"),
)
MAX_SUGGESTIONS = 5


def explain(plan: Plan, query: str, *, rank: int | None = None) -> dict[str, Any] | None:
    """The mapping document of a checkpoint name, parameter, derived tensor or half-renamed name.

    None if nothing is meant by it. `rank` limits the destinations.
    """
    for text in _readings(query):
        found = _exact(plan, text, rank)
        if found is not None:
            return {"query": query, **found}
    return None


def _readings(query: str) -> Iterator[str]:
    """The query itself, the dotted names in it, and those with a rename undone."""
    yield query
    dotted = DOTTED.findall(query)
    yield from (name for name in dotted if name != query)
    for name in dotted:
        undone = [name.replace(a, b) for a, b in HALF_RENAMES if a in name]
        yield from undone
        for once in undone:
            yield from (once.replace(a, b) for a, b in HALF_RENAMES if a in once)
        if not name.startswith("model."):
            yield f"model.{name}"


def _exact(plan: Plan, name: str, rank: int | None) -> dict[str, Any] | None:
    place = plan.find(name) if name in plan.tensors else None
    if place is not None:
        return _forward(plan, name, *place, rank)
    parameter = find_parameter(plan, name)
    if parameter is not None:
        return _reverse(plan, name, *parameter, rank)
    return _derived(plan, name)


def _box(box: Box) -> list[list[int]]:
    return [list(interval) for interval in box]


def _forward(plan: Plan, name: str, tail: Tail, layer: int, rank: int | None) -> dict[str, Any]:
    tensor = plan.tensors[name]
    what, reason = outcome(plan, tail, layer)
    if rank is not None:
        what, reason = rank_outcome(plan, tail, layer, plan.seats[rank])
    source = plan.sources[tail.source] if tail.source is not None else None
    return {
        "direction": "forward",
        "role": plan.role,
        "name": name,
        "file": plan.shards[tensor.file].name,
        "file_bytes": plan.shards[tensor.file].size,
        "byte_range": [tensor.start, tensor.stop],
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "steps": _steps(plan, name, tail, layer, source),
        "convert": source.convert if source is not None else None,
        "outcome": what,
        "reason": reason,
        "pair": _pair(plan, tail, layer, source),
        "destinations": _destinations(plan, tail, layer, rank),
        "sources": [],
        "derived": _fed(plan, source, layer),
    }


def _steps(
    plan: Plan, name: str, tail: Tail, layer: int, source: Source | None
) -> list[dict[str, str]]:
    """Each rewrite of the name with the rule that made it."""
    if source is None:
        return []
    known = source.full_name(layer, tail.expert)
    steps = []
    if known != name:
        steps.append({"rule": "accepted spelling", "before": name, "after": known})
    if source.target is None:
        return [*steps, {"rule": source.rule, "before": known, "after": f"skip: {source.reason}"}]
    if not (tail.routed | tail.failed) >> layer & 1:
        return steps
    param = plan.targets[source.target].full_name(layer)
    return [*steps, {"rule": source.rule, "before": known, "after": param}]


def _pair(plan: Plan, tail: Tail, layer: int, source: Source | None) -> dict[str, Any] | None:
    if source is None or source.pair is None or source.target is None:
        return None
    if not (tail.routed | tail.failed) >> layer & 1:
        return None
    closed = tail.routed & plan.partner_mask(tail) & 1 << layer
    return {
        "with": source.pair.replace("{layer}", str(layer)),
        "state": "complete" if closed else "waits",
        "axis": None if source.convert else plan.targets[source.target].part_dim,
    }


def _destinations(plan: Plan, tail: Tail, layer: int, rank: int | None) -> list[dict[str, Any]]:
    ranks = None if rank is None else (rank,)
    if not plan.placements:
        return []
    return [
        {
            "rank": d.rank,
            "param": d.param,
            "param_shape": list(plan.shapes[d.target]),
            "part": d.part,
            "expert": d.expert,
            "slot": d.target_box[0][0] if d.expert is not None else None,
            "source_slice": _box(d.source_box),
            "target_slice": _box(d.target_box),
        }
        for d in deliveries(plan, tail, layer, ranks)
    ]


def _fed(plan: Plan, source: Source | None, layer: int) -> list[dict[str, Any]]:
    """Derived tensors that a parameter feeds."""
    if source is None or source.target is None:
        return []
    return _derived_of(plan, plan.targets[source.target].table, layer)


def _derived_of(plan: Plan, table: str, layer: int) -> list[dict[str, Any]]:
    return [
        {
            "name": f"{derive.module.replace('{layer}', str(layer))}.{output.name}",
            "inputs": _inputs(plan, derive.table, layer),
            "kernel": derive.op,
        }
        for derive in plan.derives
        if derive.table == table and derive.layers >> layer & 1
        for output in derive.outputs
    ]


def _inputs(plan: Plan, table: str, layer: int) -> list[str]:
    return [
        target.full_name(layer)
        for target in plan.targets
        if target.table == table and target.layers >> layer & 1
    ]


def _reverse(plan: Plan, name: str, index: int, layer: int, rank: int | None) -> dict[str, Any]:
    target = plan.targets[index]
    holders = [s.rank for s in plan.seats if holds(plan, target, s) >> layer & 1]
    sources = list(_sources(plan, index, layer, rank)) if plan.placements else []
    whole = bool(sources)
    return {
        "direction": "reverse",
        "role": plan.role,
        "name": name,
        "file": None,
        "byte_range": None,
        "dtype": target.dtype,
        "shape": list(plan.shapes[index]) if plan.shapes else list(target.shape),
        "whole_shape": list(target.shape),
        "fill": fill_of(plan, index, layer),
        "fill_reason": target.fill.reason,
        "ranks": holders,
        "steps": [],
        "outcome": "loaded" if whole else _unfilled(target.fill.kind),
        "reason": target.fill.reason,
        "pair": None,
        "destinations": [],
        "sources": sources,
        "derived": _derived_of(plan, target.table, layer),
    }


def _unfilled(kind: FillKind) -> str:
    """What a parameter without a source is: never written, or meant to come from elsewhere."""
    return "unwritten" if Fill(kind).is_written else kind


def _sources(plan: Plan, index: int, layer: int, rank: int | None) -> Iterator[dict[str, Any]]:
    """Every tensor of the checkpoint that fills a parameter, with its slices per rank."""
    param = plan.targets[index].full_name(layer)
    for tail, _use, source in uses_of(plan, index):
        if not tail.routed >> layer & 1:
            continue
        name = tail.name(layer)
        tensor = plan.tensors[name]
        yield {
            "name": name,
            "rule": source.rule,
            "file": plan.shards[tensor.file].name,
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "part": source.part,
            "expert": tail.expert if source.experts else None,
            "slices": [
                {k: d[k] for k in ("rank", "slot", "source_slice", "target_slice")}
                for d in _destinations(plan, tail, layer, rank)
                if (d["param"], d["part"]) == (param, source.part)
            ],
        }


def _derived(plan: Plan, name: str) -> dict[str, Any] | None:
    module, _dot, leaf = name.rpartition(".")
    for derive in plan.derives:
        for output in derive.outputs:
            if output.name != leaf:
                continue
            for layer in layers_in(derive.layers):
                if derive.module.replace("{layer}", str(layer)) == module:
                    return _derived_document(plan, name, derive.table, layer, derive.op)
    return None


def _derived_document(plan: Plan, name: str, table: str, layer: int, kernel: str) -> dict[str, Any]:
    inputs = _inputs(plan, table, layer)
    return {
        "direction": "reverse",
        "role": plan.role,
        "name": name,
        "file": None,
        "byte_range": None,
        "dtype": None,
        "shape": None,
        "steps": [],
        "outcome": "derived",
        "reason": f"computed from {', '.join(inputs)} by {kernel}",
        "pair": None,
        "destinations": [],
        "sources": [{"name": n, "rule": kernel, "part": None, "expert": None} for n in inputs],
        "derived": [{"name": name, "inputs": inputs, "kernel": kernel}],
    }


def suggest(plan: Plan, query: str, limit: int = MAX_SUGGESTIONS) -> list[str]:
    """Names of the checkpoint or parameters that are spelled most alike."""
    layer = re.search(r"layers\.(\d+)\.", query)
    place = f"layers.{layer.group(1)}." if layer else ""
    near = [name for name in plan.tensors if place in name][:20_000]
    near += [view.name for view in parameters(plan, 0) if place in view.name]
    tails = {name.rsplit("layers.", 1)[-1]: name for name in near}
    found = difflib.get_close_matches(query.rsplit("layers.", 1)[-1], tails, n=limit, cutoff=0.5)
    return [tails[text] for text in found]
