"""Which layouts are legal, against a second definition written from the sharding alone."""

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.deepseek_tensors import BLOCK
from support.golden_checkpoint import BASE, FP8, V2_LITE, V3
from support.in_memory import in_memory

from loadscope.loader.plan import Plan, make_plan
from loadscope.loader.topology import Layout

WIDTHS = [96, 128, 192, 256, 384, 512, 640, 768, 1024]


@st.composite
def any_case(draw: st.DrawFn) -> tuple[dict[str, Any], Layout]:
    """A config of some sizes and a layout that may or may not divide them."""
    config = {
        **BASE,
        **draw(st.sampled_from([V3, V2_LITE])),
        **draw(st.sampled_from([{}, FP8])),
        "num_attention_heads": draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12])),
        "qk_nope_head_dim": draw(st.sampled_from([64, 128])),
        "v_head_dim": draw(st.sampled_from([32, 64, 128])),
        "intermediate_size": draw(st.sampled_from(WIDTHS)),
        "moe_intermediate_size": draw(st.sampled_from(WIDTHS)),
        "n_routed_experts": draw(st.integers(1, 12)),
        "n_shared_experts": draw(st.integers(1, 2)),
        "q_lora_rank": draw(st.sampled_from([128, 192, None])),
        "num_hidden_layers": draw(st.integers(2, 4)),
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 0,
    }
    sizes = st.sampled_from([1, 1, 2, 2, 3, 4, 6, 8])
    return config, Layout(draw(sizes), draw(sizes), draw(st.integers(1, 5)))


def is_legal(config: dict[str, Any], layout: Layout) -> bool:
    if layout.tp_size % layout.ep_size or layout.tp_size > config["n_routed_experts"]:
        return False
    if layout.pp_size > config["num_hidden_layers"]:
        return False
    if config["n_routed_experts"] % layout.ep_size:
        return False
    return _heads_divide(config, layout.tp_size) and _widths_divide(config, layout)


def _heads_divide(config: dict[str, Any], tp_size: int) -> bool:
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    if heads % tp_size:
        return False
    per_head = [nope + config["qk_rope_head_dim"], nope + config["v_head_dim"]]
    local = [heads // tp_size * size for size in [*per_head, config["v_head_dim"]]]
    is_whole = all(size % BLOCK == 0 for size in local) or tp_size == 1
    meets = config["q_lora_rank"] is None or config["q_lora_rank"] % BLOCK == 0
    return not _is_fp8(config) or (is_whole and meets)


def _widths_divide(config: dict[str, Any], layout: Layout) -> bool:
    """Gate and up lie one behind the other, so each must end on a block even when nothing cuts."""
    expert = config["moe_intermediate_size"]
    cuts = [
        (config["intermediate_size"], layout.tp_size),
        (expert * config["n_shared_experts"], layout.tp_size),
        (expert, layout.tp_size // layout.ep_size),
    ]
    block = BLOCK if _is_fp8(config) else 1
    return all(size % (ways * block) == 0 for size, ways in cuts)


def _is_fp8(config: dict[str, Any]) -> bool:
    return "quantization_config" in config


def errors(plan: Plan) -> set[str]:
    return {f.code for f in plan.findings if f.level == "error"}


@settings(max_examples=400)
@given(any_case())
def test_a_plan_passes_exactly_when_the_layout_is_legal(
    case: tuple[dict[str, Any], Layout],
) -> None:
    config, layout = case
    verdict = make_plan(in_memory(config), layout).verdict
    assert verdict == ("pass" if is_legal(config, layout) else "fail")


@settings(max_examples=200)
@given(any_case())
def test_an_illegal_layout_is_refused_as_such(case: tuple[dict[str, Any], Layout]) -> None:
    config, layout = case
    assume(not is_legal(config, layout))
    assert errors(make_plan(in_memory(config), layout)) <= {"LS206", "LS207"}


@settings(max_examples=200)
@given(any_case())
def test_the_largest_legal_size_in_a_refusal_is_the_largest_legal_size(
    case: tuple[dict[str, Any], Layout],
) -> None:
    config, layout = case
    assume(not is_legal(config, layout))
    named = {
        f.evidence["largest_tp_size"]
        for f in make_plan(in_memory(config), layout).findings
        if "largest_tp_size" in f.evidence
    }
    smaller = [Layout(tp, layout.ep_size, layout.pp_size) for tp in range(1, layout.tp_size + 1)]
    legal = [other.tp_size for other in smaller if is_legal(config, other)]
    assert named <= {max(legal, default=None)}
