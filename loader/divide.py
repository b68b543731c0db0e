"""Whether a layout divides a model: every cut on a unit, never inside a quantisation block."""

from collections.abc import Sequence
from dataclasses import replace

from loadscope.loader.findings import Finding, finding
from loadscope.loader.model import Model
from loadscope.loader.schema import Target
from loadscope.loader.tables import Split
from loadscope.loader.topology import Layout


def check_layout(model: Model, targets: Sequence[Target], layout: Layout) -> list[Finding]:
    """Why a layout is not legal for this model, with the largest that is; empty when it is."""
    faults = _faults(model, targets, layout)
    return [
        finding(
            code,
            name,
            f"{message}; {_largest(model, targets, layout)}",
            fix="choose a layout that divides the model",
            pattern=name,
            evidence={
                "layout": layout.as_json(),
                "largest_tp_size": _largest_tp(model, targets, layout),
            },
        )
        for code, name, message in faults
    ] + _joints(targets)


def _faults(model: Model, targets: Sequence[Target], layout: Layout) -> list[tuple[str, str, str]]:
    faults = [*_group_faults(model, layout)]
    if faults:
        return faults
    weights = {t.table: t for t in targets if t.role == "weight"}
    seen = set()
    for target in targets:
        for split in target.splits:
            fault = _split_fault(target, weights.get(target.table, target), split, layout)
            if fault is not None and (target.table, split) not in seen:
                seen.add((target.table, split))
                faults.append(fault)
    return faults


def _group_faults(model: Model, layout: Layout) -> list[tuple[str, str, str]]:
    tp, ep, pp = layout.tp_size, layout.ep_size, layout.pp_size
    faults = []
    if ep > tp or tp % ep:
        faults.append(
            (
                "LS206",
                "ep_size",
                f"ep_size {ep} does not divide tp_size {tp}: EP divides the TP group",
            )
        )
    if pp > model.num_hidden_layers:
        faults.append(
            ("LS206", "pp_size", f"pp_size {pp} is more than the {model.num_hidden_layers} layers")
        )
    if model.moe_layers and tp > model.n_routed_experts:
        faults.append(
            ("LS206", "tp_size", f"tp_size {tp} is more than the {model.n_routed_experts} experts")
        )
    return faults


def _split_fault(
    target: Target, weight: Target, split: Split, layout: Layout
) -> tuple[str, str, str] | None:
    """One dim over one axis: pieces of each part must be whole units and whole blocks."""
    ways = layout.ways(split.axis)
    if ways == 1 or split.axis == "vocab":
        return None
    per, name = _per(target, split.dim), target.name
    symbol = target.symbols[split.dim]
    if target.parts and split.dim == target.part_dim:
        symbol = f"one part of {symbol}"
    for logical in _sizes(weight, split.dim):
        if split.unit > 1 and (logical // split.unit) % ways:
            return "LS206", name, f"{name}: {logical // split.unit} heads cannot be cut in {ways}"
        if logical % ways:
            return "LS206", name, f"{name}: {logical} ({symbol}) cannot be cut in {ways}"
        if (logical // ways) % per:
            return (
                "LS207",
                name,
                f"{name}: cut in {ways}, {logical} ({symbol}) gives pieces of {logical // ways}, "
                f"and a cut inside a quantisation block of {per}",
            )
    return None


def _per(target: Target, dim: int) -> int:
    back = dim - len(target.shape)
    return target.block[back] if back >= -2 and len(target.shape) >= 2 else 1


def _sizes(target: Target, dim: int) -> list[int]:
    if target.parts and dim == target.part_dim:
        return [part.size for part in target.parts]
    return [target.shape[dim]]


def _joints(targets: Sequence[Target]) -> list[Finding]:
    """Fused parts must meet on a block boundary, or their scales cannot be stacked."""
    weights = {t.table: t for t in targets if t.role == "weight"}
    findings = []
    for target in targets:
        weight = weights.get(target.table)
        per = _per(target, target.part_dim) if target.parts else 1
        if per == 1 or weight is None:
            continue
        for part in weight.parts[:-1]:
            if part.size % per:
                findings.append(_joint(target, part.name, part.size, per))
    return findings


def _joint(target: Target, part: str, rows: int, per: int) -> Finding:
    return finding(
        "LS207",
        target.name,
        f"{target.name}: part {part} has {rows} rows, so the next part begins inside a block "
        f"of {per}; expected a multiple of {per}",
        fix="this model cannot be fused in blocks; requantise with a block that divides the part",
        pattern=target.name,
        evidence={"part": part, "rows": rows, "block": per},
    )


def _largest_tp(model: Model, targets: Sequence[Target], layout: Layout) -> int | None:
    """The largest legal tp_size not above the asked one, with ep_size and pp_size as they are."""
    for tp in range(layout.tp_size, 0, -1):
        if not _faults(model, targets, replace(layout, tp_size=tp)):
            return tp
    return None


def _largest(model: Model, targets: Sequence[Target], layout: Layout) -> str:
    if layout.pp_size > model.num_hidden_layers:
        return f"the largest legal pp_size is {model.num_hidden_layers}"
    tp = _largest_tp(model, targets, layout)
    rest = f"ep_size {layout.ep_size} and pp_size {layout.pp_size}"
    if tp is not None:
        return f"the largest legal tp_size with {rest} is {tp}"
    smaller = [ep for ep in range(layout.ep_size, 0, -1) if layout.tp_size % ep == 0]
    legal = [e for e in smaller if not _faults(model, targets, replace(layout, ep_size=e))]
    if legal:
        return f"the largest legal ep_size with tp_size {layout.tp_size} is {legal[0]}"
    return f"with {rest} no tp_size up to {layout.tp_size} is legal"
