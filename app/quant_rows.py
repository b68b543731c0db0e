"""Which scheme each kind of module has: layers that are alike share a row."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from loadscope.loader.assign import module_of
from loadscope.loader.plan import Plan
from loadscope.loader.quant import describe_module
from loadscope.loader.topology import compact, layers_in

LAYER = "{layer}"


@dataclass(slots=True)
class Kind:
    """Modules that differ only in their layer: masks by scheme, and where the files disagree."""

    pattern: str
    masks: dict[str, int] = field(default_factory=dict)
    failed: int = 0

    def name(self, layer: int) -> str:
        return self.pattern.replace(LAYER, str(layer))

    def groups(self) -> Iterator[list[int]]:
        """Layers that are alike: [0] for a module outside the layers."""
        for mask in self.masks.values():
            for part in (mask & self.failed, mask & ~self.failed):
                if part:
                    yield layers_in(part)


def quant_rows(plan: Plan) -> list[dict[str, Any]]:
    """One row per kind of module, scheme and verdict of the headers; kept with the plan."""
    if "quant_rows" not in plan.cache:
        groups = ((kind, layers) for kind in _kinds(plan) for layers in kind.groups())
        rows = (_row(plan, kind, layers) for kind, layers in groups)
        plan.cache["quant_rows"] = [row for row in rows if row is not None]
    kept: list[dict[str, Any]] = plan.cache["quant_rows"]
    return kept


def module_names(plan: Plan) -> list[str]:
    """Every module of the model, kind by kind."""
    return [
        kind.name(layer) for kind in _kinds(plan) for layers in kind.groups() for layer in layers
    ]


def _kinds(plan: Plan) -> list[Kind]:
    kinds: dict[str, Kind] = {}
    failed = _failed(plan)
    for number, target in enumerate(plan.targets):
        pattern = module_of(target.table.replace(LAYER, "{}"), 0).replace("{}", LAYER)
        kind = kinds.setdefault(pattern, Kind(pattern))
        kind.masks[target.scheme] = kind.masks.get(target.scheme, 0) | target.layers
        kind.failed |= failed.get(number, 0)
    return list(kinds.values())


def _failed(plan: Plan) -> dict[int, int]:
    """By target: layers in which a stored tensor is not what it expects."""
    masks: dict[int, int] = {}
    for tail in plan.tails:
        target = plan.sources[tail.source].target if tail.source is not None else None
        if target is not None and tail.failed:
            masks[target] = masks.get(target, 0) | tail.failed
    return masks


def _row(plan: Plan, kind: Kind, layers: list[int]) -> dict[str, Any] | None:
    """What decided, and what disagrees, is told of the first of the layers."""
    first = describe_module(plan, kind.name(layers[0]))
    if first is None:
        return None
    return {
        "module": kind.pattern,
        "layers": compact(layers) if LAYER in kind.pattern else None,
        "count": len(layers),
        "example": first["module"],
        "scheme": first["scheme"],
        "decided_by": first["decided_by"],
        "dtypes": list(dict.fromkeys(header["dtype"] for header in first["headers"])),
        "agree": first["agree"],
        "disagreements": first["disagreements"],
    }
