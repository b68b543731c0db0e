"""Sizes that a layout can cut in a format: between blocks, groups, heads and packed words."""

from math import lcm
from typing import Any

from hypothesis import strategies as st

from support.quantised_formats import Form


@st.composite
def sizes_of(draw: st.DrawFn, form: Form, tp: int, ep: int) -> dict[str, Any]:
    """Cuts fall between blocks and groups; sizes that nothing cuts may end inside one."""
    ways, both = tp // ep, lcm(form.rows, form.columns, 8)
    local_heads = draw(st.integers(1, 2))
    nope, rope, value = draw(st.sampled_from(head_sizes(form, local_heads)))
    shared, width = draw(_widths(form, tp, ways))
    return {
        "hidden_size": draw(st.sampled_from(_wide(form, lcm(8, form.columns)))),
        "q_lora_rank": draw(st.sampled_from([lcm(2 * both, 64), None])),
        "kv_lora_rank": draw(st.sampled_from(_wide(form, form.columns))),
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
        "num_attention_heads": tp * local_heads,
        "intermediate_size": both * tp * draw(st.integers(1, max(1, 128 // both))),
        "moe_intermediate_size": width,
        "n_shared_experts": shared,
        "n_routed_experts": ep * max(ways, draw(st.integers(1, 2))),
        "vocab_size": draw(st.sampled_from([1, 64, 130, 200])),
    }


def _wide(form: Form, unit: int) -> list[int]:
    """More than one block or group; the last one whole where groups are never ragged."""
    if form.is_even:
        return [2 * unit, 3 * unit]
    return [136, 200, 264] if form.columns > 64 else [72, 96, 128]


@st.composite
def _widths(draw: st.DrawFn, form: Form, tp: int, ways: int) -> tuple[int, int]:
    """(shared experts, width of one expert)."""
    both = lcm(form.rows, form.columns, 8)
    group = form.expert.group
    if form.is_wna16 and group > 32 and ways == tp and tp * 32 % group == 0 and draw(st.booleans()):
        # one expert's piece is half a group or less: the groups are made smaller
        return group // 32, 32 * tp
    return draw(st.integers(1, 2)), both * tp * draw(st.integers(1, max(1, 128 // both)))


def head_sizes(form: Form, heads: int) -> list[tuple[int, int, int]]:
    """(nope, rope, value) that local heads can cut, nope never value; the smallest few."""
    unit = 8 if form.rows == form.columns == 1 else 16
    sizes = [unit * n for n in range(1, 26)]
    found = [
        (nope, rope, value)
        for nope in sizes
        for rope in (8, 16, 32, 64, 128)
        for value in sizes
        if nope != value and _fits(form, heads, nope, rope, value)
    ]
    return sorted(found, key=sum)[:6]


def _fits(form: Form, heads: int, nope: int, rope: int, value: int) -> bool:
    rows = (heads * (nope + rope), heads * (nope + value))
    return all(n % form.rows == 0 for n in rows) and heads * value % form.columns == 0
