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
    seen = set()
    for target in targets:
        for split in target.splits:
            fault = _split_fault(target, split, layout)
            if fault is not None and (target.table, split.axis) not in seen:
                seen.add((target.table, split.axis))
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


def _split_fault(target: Target, split: Split, layout: Layout) -> tuple[str, str, str] | None:
    """One dim over one axis: pieces of each part must be whole units and whole blocks."""
    ways = layout.ways(split.axis)
    if ways == 1 or split.axis == "vocab":
        return None
    per, name = target.per[split.dim], target.name
    symbol = target.symbols[split.dim]
    if target.parts and split.dim == target.part_dim:
        symbol = f"one part of {symbol}"
    for whole in _sizes(target, split.dim):
        size = whole - split.kept
        if split.unit > 1 and (size // split.unit) % ways:
            return "LS206", name, f"{name}: {size // split.unit} heads cannot be cut in {ways}"
        if size % ways:
            return "LS206", name, f"{name}: {size} ({symbol}) cannot be cut in {ways}"
        if (size // ways) % per:
            return (
                "LS207",
                name,
                f"{name}: cut in {ways}, {size} ({symbol}) gives pieces of {size // ways}, "
                f"and a cut inside a quantisation block of {per}",
            )
    return None


def _sizes(target: Target, dim: int) -> tuple[int, ...]:
    """Logical sizes that are cut: of each part along the fused dim, else of the whole."""
    if target.parts and dim == target.part_dim:
        return target.logical_parts
    return (target.logical[dim],)


def _joints(targets: Sequence[Target]) -> list[Finding]:
    """Fused parts must meet on a block boundary, or their scales cannot be stacked."""
    findings = []
    for target in targets:
        per = target.per[target.part_dim] if target.parts else 1
        for part, rows in zip(target.parts[:-1], target.logical_parts, strict=False):
            if per > 1 and rows % per:
                findings.append(_joint(target, part.name, rows, per))
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
