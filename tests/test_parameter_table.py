"""The table that published plans are compared with says what was published for DeepSeek-V3."""

import pytest
from conftest import open_pack
from support.parameter_table import Decoder
from support.published import STORED
from support.stored_leaves import Stock

from loadscope.loader.topology import Layout

TP_8, TP_8_EP_8 = Layout(tp_size=8), Layout(tp_size=8, ep_size=8)
MODULES = {
    "self_attn.fused_qkv_a_proj_with_mqa": ((2112, 7168), (17, 56)),
    "self_attn.q_b_proj": ((3072, 1536), (24, 12)),
    "self_attn.kv_b_proj": ((4096, 512), (32, 4)),
    "self_attn.o_proj": ((7168, 2048), (56, 16)),
    "mlp.gate_up_proj": ((4608, 7168), (36, 56)),
    "mlp.down_proj": ((7168, 2304), (56, 18)),
    "mlp.shared_experts.gate_up_proj": ((512, 7168), (4, 56)),
    "mlp.shared_experts.down_proj": ((7168, 256), (56, 2)),
}
EXPERTS = {
    TP_8: {
        "w13": ((256, 512, 7168), (256, 4, 56)),
        "w2": ((256, 7168, 256), (256, 56, 2)),
    },
    TP_8_EP_8: {
        "w13": ((32, 4096, 7168), (32, 32, 56)),
        "w2": ((32, 7168, 2048), (32, 56, 16)),
    },
}


def layer(layout: Layout, *, is_moe: bool, fuses_shared: bool = False) -> dict[str, Stock]:
    config = open_pack("deepseek-v3").config
    assert config is not None
    decoder = Decoder(config, STORED["deepseek-v3"], layout, fuses_shared=fuses_shared)
    return decoder.layer(is_moe=is_moe)


@pytest.mark.parametrize("module", MODULES)
def test_a_linear_has_its_published_shapes(module: str) -> None:
    weight, scale = MODULES[module]
    found = layer(TP_8, is_moe=False) | layer(TP_8, is_moe=True)
    stored = (found[f"{module}.weight"], found[f"{module}.weight_scale_inv"])
    assert stored == (("F8_E4M3", weight), ("F32", scale))


@pytest.mark.parametrize("stack", ["w13", "w2"])
@pytest.mark.parametrize("layout", EXPERTS)
def test_a_stack_of_experts_has_its_published_shapes(layout: Layout, stack: str) -> None:
    weight, scale = EXPERTS[layout][stack]
    found = layer(layout, is_moe=True)
    name = f"mlp.experts.{stack}_weight"
    assert (found[name], found[f"{name}_scale_inv"]) == (("F8_E4M3", weight), ("F32", scale))


def test_a_fused_shared_expert_is_one_slot_more() -> None:
    found = layer(TP_8, is_moe=True, fuses_shared=True)
    assert found["mlp.experts.w13_weight"] == ("F8_E4M3", (257, 512, 7168))


def test_a_fused_shared_expert_has_no_parameters_of_its_own() -> None:
    assert not any("shared" in name for name in layer(TP_8, is_moe=True, fuses_shared=True))
