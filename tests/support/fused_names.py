"""Checkpoints in which parts stand fused already, under the names that trainers and exporters use.

Works on headers (specs) alone; values are joined by the caller's own rule.
"""

import re
from collections.abc import Callable, Iterable

from support.linear_specs import Spec

Joined = tuple[str, str, str]  # first part's module, second part's, the fused module
PAIRS: dict[str, Joined] = {
    "qkv_a": ("q_a_proj", "kv_a_proj_with_mqa", "fused_qkv_a_proj_with_mqa"),
    "gate_up": ("gate_proj", "up_proj", "gate_up_proj"),
}


def fuse_specs(specs: Iterable[Spec], pairs: Iterable[str]) -> list[Spec]:
    """Parts of the named pairs as one tensor each, rows behind rows; routed experts stay."""
    kept = {spec.name: spec for spec in specs}
    for first, second, fused in (PAIRS[pair] for pair in pairs):
        for name in [name for name in kept if f".{first}." in name and ".experts." not in name]:
            other = kept.pop(name.replace(f".{first}.", f".{second}."))
            one = kept.pop(name)
            shape = (one.shape[0] + other.shape[0], *one.shape[1:])
            joined = name.replace(f".{first}.", f".{fused}.")
            kept[joined] = Spec(joined, one.dtype, shape, one.is_scale)
    return list(kept.values())


EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.(\w+)")
Naming = Callable[[bool, str], str]


def as_transformers(is_down: bool, leaf: str) -> str:
    """gate_up_proj, down_proj_scale_inv: no `weight` in the name."""
    tail = "" if leaf == "weight" else "_" + leaf.removeprefix("weight_")
    return ("down_proj" if is_down else "gate_up_proj") + tail


def as_engine(is_down: bool, leaf: str) -> str:
    """w13_weight, w2_weight_scale_inv: the parameter's own name."""
    return ("w2_" if is_down else "w13_") + leaf


def stack_specs(specs: Iterable[Spec], naming: Naming) -> list[Spec]:
    """All experts of a layer as one tensor per leaf: [experts, rows, columns], gate before up."""
    kept, groups = [], dict[str, list[Spec]]()
    for spec in specs:
        found = EXPERT.fullmatch(spec.name)
        if found is None:
            kept.append(spec)
            continue
        name = f"{found[1]}.{naming(found[3] == 'down_proj', found[4])}"
        groups.setdefault(name, []).append(spec)
    for name, group in groups.items():
        experts = len({EXPERT.fullmatch(spec.name)[2] for spec in group})  # type: ignore[index]
        rows = sum(spec.shape[0] for spec in group) // experts
        shape = (experts, rows, *group[0].shape[1:])
        kept.append(Spec(name, group[0].dtype, shape, group[0].is_scale))
    return kept
