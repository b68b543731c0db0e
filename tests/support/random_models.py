"""Random small models with layouts that divide them, for property tests.

Head sizes differ from one another and from the ranks of the compressions, so that a mix-up of two
of them changes shapes or values.
"""

from typing import Any, NamedTuple

from hypothesis import strategies as st

from loadscope.loader.topology import Layout
from support.golden_checkpoint import BASE, FP8, V2_LITE, V3, V32

TP_SIZES = (1, 2, 3, 4, 6)
HEAD_SIZES = ((12, 4, 20), (20, 8, 12), (6, 2, 10))  # nope, rope, v
FP8_HEAD_SIZES = ((192, 64, 64), (64, 64, 192))


class Case(NamedTuple):
    """A config and a layout that is legal for it."""

    config: dict[str, Any]
    layout: Layout


@st.composite
def cases(draw: st.DrawFn, *, fp8: bool = False, max_pp: int = 3) -> Case:
    """Any family, any legal layout up to tp 6 and pp 3."""
    tp_size = draw(st.sampled_from(TP_SIZES))
    ep_size = draw(st.sampled_from([n for n in range(1, tp_size + 1) if tp_size % n == 0]))
    pp_size = draw(st.integers(1, max_pp))
    family = draw(st.sampled_from([V3, V2_LITE, V32]))
    sizes = draw(_fp8_sizes(tp_size) if fp8 else _sizes(tp_size))
    layers = draw(st.integers(max(2, pp_size), 4))
    config = {
        **BASE,
        **family,
        **sizes,
        **(FP8 if fp8 else {}),
        "num_hidden_layers": layers,
        "first_k_dense_replace": draw(st.integers(0, layers)),
        "n_routed_experts": ep_size * (tp_size // ep_size + draw(st.integers(0, 1 if fp8 else 3))),
        "n_shared_experts": draw(st.integers(1, 2)),
        "vocab_size": draw(st.integers(1, 300)),
        "num_nextn_predict_layers": draw(st.integers(0, 1)),
        "hidden_size": draw(st.sampled_from([8, 24, 200])),
        "kv_lora_rank": draw(st.sampled_from([5, 16, 72])),
    }
    if family is V2_LITE:
        config["q_lora_rank"] = None
    return Case(config, Layout(tp_size=tp_size, ep_size=ep_size, pp_size=pp_size))


@st.composite
def _sizes(draw: st.DrawFn, tp_size: int) -> dict[str, Any]:
    nope, rope, value = draw(st.sampled_from(HEAD_SIZES))
    return {
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
        "num_attention_heads": tp_size * draw(st.integers(1, 3)),
        "intermediate_size": tp_size * draw(st.integers(1, 9)),
        "moe_intermediate_size": tp_size * draw(st.integers(1, 5)),
        "q_lora_rank": draw(st.sampled_from([7, 32])),
        "index_n_heads": draw(st.integers(1, 5)),
        "index_head_dim": draw(st.sampled_from([6, 16])),
    }


@st.composite
def _fp8_sizes(draw: st.DrawFn, tp_size: int) -> dict[str, Any]:
    """Every cut falls between blocks of 128; sizes that nothing cuts may end inside one."""
    nope, rope, value = draw(st.sampled_from(FP8_HEAD_SIZES))
    return {
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
        "num_attention_heads": tp_size * 2,
        "intermediate_size": 128 * tp_size * draw(st.integers(1, 2)),
        "moe_intermediate_size": 128 * tp_size,
        "q_lora_rank": draw(st.sampled_from([128, 256])),
        "index_n_heads": draw(st.integers(1, 5)),
        "index_head_dim": draw(st.sampled_from([64, 160])),
    }
