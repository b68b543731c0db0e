"""Shapes of stored leaves: from a weight's logical rows and columns to stored elements."""

from loadscope.loader.schema import Target, stored_size
from loadscope.loader.tables import WHOLE, Fill, Leaf, Param, Part, Rule, Split


def make_target(param: Param, leaf: Leaf, scheme: str, decided_by: str) -> Target:
    """The target of one leaf of a parameter, whole model."""
    if leaf.is_per_tensor and len(param.shape) >= 2:
        return _per_tensor_target(param, leaf, scheme, decided_by)
    order = _order(len(param.shape), leaf)
    per = tuple(_per(len(param.shape), leaf)[dim] for dim in order)
    logical = tuple(param.shape[dim] for dim in order)
    part_dim = order.index(param.part_dim) if param.parts else 0
    parts = tuple(Part(p.name, stored_size(p.size, per[part_dim])) for p in param.parts)
    shape = [stored_size(size, p) for size, p in zip(logical, per, strict=True)]
    if parts:
        shape[part_dim] = sum(part.size for part in parts)
    return Target(
        name=_leafed(param, leaf),
        table=param.name,
        dtype=leaf.dtype,
        shape=tuple(shape),
        logical=logical,
        per=per,
        symbols=tuple(param.symbols[dim] for dim in order),
        splits=tuple(_splits(param, leaf, order, per)),
        parts=parts,
        part_dim=part_dim,
        logical_parts=tuple(p.size for p in param.parts),
        layers=param.layers,
        stage=param.stage,
        fill=leaf.fill if leaf.fill != Fill() else param.fill,
        role=leaf.role,
        accepts=leaf.accepts,
        experts=param.shape[0] if param.is_stacked else 0,
        fused_experts=sum(split.kept for split in param.splits),
        scheme=scheme,
        decided_by=decided_by,
    )


def _per_tensor_target(param: Param, leaf: Leaf, scheme: str, decided_by: str) -> Target:
    """Scales per tensor: one element per expert and part, per part, or one in all."""
    has_parts = len(param.parts) > 1
    width = len(param.parts) if has_parts and _has_own_elements(param, leaf) else 0
    shape: tuple[int, ...] = (max(width, 1),)
    symbols: tuple[str, ...] = ("one per part",) if width else ("one per tensor",)
    if param.is_stacked:
        shape = (param.shape[0], width) if width else (param.shape[0],)
        symbols = (param.symbols[0], "one per part")[: len(shape)]
    own = width > 0 and (leaf.slot == "part" or not param.is_stacked)
    combined = has_parts and not own
    fill = leaf.fill if leaf.fill != Fill() else Fill("combined") if combined else param.fill
    return Target(
        name=_leafed(param, leaf),
        table=param.name,
        dtype=leaf.dtype,
        shape=shape,
        logical=shape,
        per=(1,) * len(shape),
        symbols=symbols,
        splits=tuple(s for s in param.splits if s.axis == "ep" and not leaf.is_global),
        parts=tuple(Part(part.name, 1) for part in param.parts) if own else (),
        part_dim=len(shape) - 1,
        logical_parts=(1,) * len(param.parts) if own else (),
        layers=param.layers,
        stage=param.stage,
        fill=fill,
        role=leaf.role,
        accepts=leaf.accepts,
        experts=param.shape[0] if param.is_stacked else 0,
        fused_experts=sum(split.kept for split in param.splits),
        scheme=scheme,
        decided_by=decided_by,
    )


def _has_own_elements(param: Param, leaf: Leaf) -> bool:
    """Whether parts have elements of their own in a scale per tensor."""
    return leaf.slot != "one" if param.is_stacked else not param.shares_scale


def _leafed(param: Param, leaf: Leaf) -> str:
    return param.name.replace("{leaf}", leaf.name)


def _order(ndim: int, leaf: Leaf) -> list[int]:
    """Dims of the logical weight in the leaf's order."""
    dims = list(range(ndim))
    if leaf.is_transposed and ndim >= 2:
        dims[-2:] = [ndim - 1, ndim - 2]
    return dims


def _per(ndim: int, leaf: Leaf) -> tuple[int, ...]:
    return (*(1,) * (ndim - 2), leaf.rows_per, leaf.cols_per) if ndim >= 2 else (1,) * ndim


def _splits(param: Param, leaf: Leaf, order: list[int], per: tuple[int, ...]) -> list[Split]:
    """Cuts in the leaf's order; a dim that one element covers is not cut."""
    found = []
    for split in param.splits:
        if split.axis == "ep" and leaf.is_global:
            continue
        dim = order.index(split.dim)
        if per[dim] != WHOLE:
            found.append(Split(dim, split.axis, split.unit, split.kept))
    return found


def share_of(target: Target, param: Param, rule: Rule) -> tuple[tuple[int, ...], int, int]:
    """(extent of a rule's source, experts it counts, first of them).

    A source of one expert lacks the expert dim; one of all experts has the routed ones.
    """
    extent = list(target.shape)
    if rule.part is not None and len(target.parts) > 1:
        sizes = {part.name: part.size for part in target.parts}
        extent[target.part_dim] = sizes[rule.part]
    if not target.is_stacked:
        return tuple(extent), 0, 0
    routed = param.shape[0] - sum(split.kept for split in param.splits)
    if rule.expert is not None:
        return tuple(extent[1:]), 1, rule.expert
    if "{expert}" in rule.source:
        return tuple(extent[1:]), routed, 0
    return (routed, *extent[1:]), 0, 0


def stored_shape(logical: tuple[int, ...], leaf: Leaf) -> tuple[int, ...]:
    """Shape in the files of a leaf of a weight [rows, columns]."""
    if leaf.is_per_tensor:
        return ()
    rows, columns = logical
    sizes = (stored_size(rows, leaf.rows_per), stored_size(columns, leaf.cols_per))
    return sizes[::-1] if leaf.is_transposed else sizes
