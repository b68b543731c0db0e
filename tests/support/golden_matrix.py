"""Which formats were compared in which kinds of parameters and layouts."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from loadscope.loader.topology import Layout
from support.golden_records import Record, variant_of


class Cell(NamedTuple):
    """One format, one kind of parameter, one way to divide it."""

    format: str
    kind: str
    layout: str


# nvfp4 leaves attention in bf16, here as in every published checkpoint of it
FORMATS = {
    "bf16": ("v3-bf16", "v2lite-bf16", "v32-bf16"),
    "fp8 block": ("v3-fp8-block", "v32-fp8-block"),
    "fp8 channel": ("v3-fp8-channel",),
    "fp8 tensor": ("v3-fp8-tensor",),
    "int8 channel": ("v3-int8-channel",),
    "int8 block": ("v3-int8-block",),
    "awq_marlin": ("v3-awq-marlin",),
    "w4afp8": ("v3-w4afp8",),
    "nvfp4": ("v3-nvfp4",),
}
KINDS = {
    "column": r"\.self_attn\.(q|q_b|kv_b)_proj\.",
    "merged": r"\.gate_up_proj\.",
    "row": r"\.(o|down)_proj\.",
    "replicated": r"\.self_attn\.(fused_qkv_a_proj_with_mqa|kv_a_proj_with_mqa)\.",
    "w13": r"\.experts\.w13_",
    "w2": r"\.experts\.w2_",
}
LAYOUTS = ("tp 2", "ep 2")


def formats_of(record: Record) -> list[str]:
    return [form for form, variants in FORMATS.items() if variant_of(record) in variants]


def cells(form: str, layout: Layout, compared: Iterable[str]) -> Iterator[Cell]:
    """One cell for each parameter whose bytes were compared; of any test that compares some."""
    at = layout_name(layout)
    for name in compared if at is not None else ():
        yield from (Cell(form, kind, at) for kind, p in KINDS.items() if re.search(p, name))


def layout_name(layout: Layout) -> str | None:
    """The column of a layout; None if it divides nothing in two."""
    if layout.ep_size > 1:
        return "ep 2"
    return "tp 2" if layout.tp_size > 1 else None


def empty_cells(counted: Counter[Cell], formats: Iterable[str] = FORMATS) -> list[Cell]:
    wanted = [Cell(f, kind, layout) for f in formats for kind in KINDS for layout in LAYOUTS]
    return [cell for cell in wanted if not counted[cell]]


def table(counted: Counter[Cell], formats: Iterable[str] = FORMATS) -> str:
    """Compared parameters of every cell, `tp 2 / ep 2`."""
    lines = ["".join([f"{'':14}", *(f"{kind:>16}" for kind in KINDS)])]
    for form in formats:
        pairs = [" / ".join(str(counted[Cell(form, kind, at)]) for at in LAYOUTS) for kind in KINDS]
        lines.append("".join([f"{form:14}", *(f"{pair:>16}" for pair in pairs)]))
    return "\n".join(lines)
