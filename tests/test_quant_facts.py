"""What a plan says of a module's quantisation: scheme, the entry that decided, parts, headers."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from support.deepseek_tensors import checkpoint_specs
from support.golden_configs import BASE, FP8, V3, V32, VARIANTS
from support.in_memory import in_memory, with_dtype, with_shape
from support.linear_specs import Spec

from loadscope.loader.checkpoint import Checkpoint
from loadscope.loader.plan import Options, Plan, make_plan
from loadscope.loader.quant import describe_format, describe_module
from loadscope.loader.topology import Layout

LAYER = "model.layers.1."
ATTN = LAYER + "self_attn."
FUSED = ATTN + "fused_qkv_a_proj_with_mqa"
EXPERTS = LAYER + "mlp.experts"
BLOCKS = "fp8 blocks 128x128"
NVFP4 = "nvfp4 groups of 16"
INT4 = "int4 groups of 128"
UNCONDITIONAL = "not quantised in this model family"
NO_ENTRY = "no exclude entry matched"
Facts = dict[str, Any]


def planned(variant: str, layout: Layout | None = None, **options: Any) -> Plan:
    return make_plan(in_memory(VARIANTS[variant]), layout, Options(**options))


def excluding(*entries: str, base: Mapping[str, Any] = FP8) -> dict[str, Any]:
    """The V3 config whose exclude list has these entries."""
    quantised = {**base["quantization_config"], "modules_to_not_convert": [*entries]}
    return {**BASE, **V3, "quantization_config": quantised}


def facts(plan: Plan, module: str) -> Facts:
    found = describe_module(plan, module)
    assert found is not None, module
    return found


def names(rows: Iterable[Mapping[str, Any]], key: str = "name") -> list[str]:
    return [row[key] for row in rows]


def test_a_fused_module_has_the_parts_of_the_files() -> None:
    found = facts(planned("v3-fp8-block"), FUSED)
    assert (found["module"], found["role"], found["format"]) == (FUSED, "target", BLOCKS)
    assert (found["scheme"], found["decided_by"]) == (BLOCKS, NO_ENTRY)
    parts = [ATTN + "q_a_proj", ATTN + "kv_a_proj_with_mqa"]
    assert found["parts"] == [{"module": part, "entry": None} for part in parts]
    assert [tuple(row.values()) for row in found["registered"]] == [
        (f"{FUSED}.weight", "F8_E4M3", [320, 256], "checkpoint"),
        (f"{FUSED}.weight_scale_inv", "F32", [3, 2], "checkpoint"),
    ]
    leaves = ("weight", "weight_scale_inv")
    assert names(found["headers"]) == [f"{part}.{leaf}" for leaf in leaves for part in parts]
    assert found["headers_total"] == 4
    assert found["headers"][0] == {
        "name": f"{parts[0]}.weight",
        "dtype": "F8_E4M3",
        "shape": [128, 256],
    }
    assert (found["agree"], found["disagreements"]) == (True, [])


@pytest.mark.parametrize("part", ["q_a_proj", "kv_a_proj_with_mqa", "q_a_proj.base_layer"])
@pytest.mark.parametrize("wrapper", ["", "language_model."])
def test_a_part_of_the_files_is_told_of_as_the_module_that_holds_it(
    part: str, wrapper: str
) -> None:
    plan = planned("v3-fp8-block")
    module = wrapper + ATTN + part
    assert facts(plan, module) == {**facts(plan, FUSED), "module": module}


# module of layer 1: its first registered parameter there, what is registered, the scheme
UNFUSED = {
    ATTN + "o_proj": ("weight", [256, 512], BLOCKS, NO_ENTRY),
    ATTN + "kv_a_layernorm": ("weight", [128], "none", UNCONDITIONAL),
    LAYER + "mlp.gate": ("weight", [8, 256], "none", UNCONDITIONAL),
    LAYER + "mlp.shared_experts.gate_up_proj": ("weight", [512, 256], BLOCKS, NO_ENTRY),
    "model.layers.0.mlp.down_proj": ("weight", [256, 512], BLOCKS, NO_ENTRY),
    "model.embed_tokens": ("weight", [512, 256], "none", UNCONDITIONAL),
    "model.norm": ("weight", [256], "none", UNCONDITIONAL),
    "lm_head": ("weight", [512, 256], "none", UNCONDITIONAL),
}


@pytest.mark.parametrize("module", UNFUSED)
def test_an_unfused_module_is_its_own_part(module: str) -> None:
    leaf, shape, scheme, decided_by = UNFUSED[module]
    found = facts(planned("v3-fp8-block"), module)
    assert (found["scheme"], found["decided_by"]) == (scheme, decided_by)
    first = found["registered"][0]
    assert (first["name"], first["shape"]) == (f"{module}.{leaf}", shape)
    is_fused = module.endswith("gate_up_proj")
    assert (found["parts"] == [{"module": module, "entry": None}]) != is_fused


def test_shapes_are_those_of_one_rank() -> None:
    layout = Layout(tp_size=2, ep_size=2)
    found = facts(planned("v3-fp8-block", layout), EXPERTS)
    assert found["registered"][0]["shape"] == [4, 512, 256]
    found = facts(planned("v3-fp8-block", layout), ATTN + "o_proj")
    assert found["registered"][0]["shape"] == [256, 256]


def test_stacked_experts_show_the_first_expert() -> None:
    found = facts(planned("v3-fp8-block"), EXPERTS)
    projections = ["gate_proj", "up_proj", "down_proj"]
    assert names(found["parts"], "module") == [f"{EXPERTS}.0.{p}" for p in projections]
    assert names(found["registered"]) == [
        f"{EXPERTS}.{w}_{leaf}" for w in ("w13", "w2") for leaf in ("weight", "weight_scale_inv")
    ]
    assert {name.split(".")[5] for name in names(found["headers"])} == {"0"}
    assert found["headers_total"] == 6


def test_one_expert_shows_its_own_tensors() -> None:
    found = facts(planned("v3-fp8-block"), f"{EXPERTS}.3.gate_proj")
    both = [f"{EXPERTS}.3.gate_proj", f"{EXPERTS}.3.up_proj"]
    assert names(found["parts"], "module") == both
    assert {name.rpartition(".")[0] for name in names(found["headers"])} == set(both)
    assert names(found["registered"]) == [
        f"{EXPERTS}.w13_weight",
        f"{EXPERTS}.w13_weight_scale_inv",
    ]


def test_a_fused_shared_expert_belongs_to_the_stacked_ones() -> None:
    plan = planned("v3-fp8-block", fuse_shared_experts=True)
    found = facts(plan, LAYER + "mlp.shared_experts.down_proj")
    assert names(found["registered"]) == [f"{EXPERTS}.w2_weight", f"{EXPERTS}.w2_weight_scale_inv"]
    assert found["registered"][0]["shape"][0] == 9


@pytest.mark.parametrize(
    "module",
    [
        ATTN + "o_prj",
        ATTN + "o_proj.weight",
        ATTN + "o_proj.",
        "self_attn.o_proj",
        "model.layers.01.self_attn.o_proj",
        "model.layers.3.self_attn.o_proj",
        "model.layers.0.mlp.experts",
        "model.layers.1",
        "model.layers.{layer}.self_attn.o_proj",
        f"{EXPERTS}.8.gate_proj",
        f"{EXPERTS}.03.gate_proj",
        f"{EXPERTS}.3",
        "model.decoder.self_attn.o_proj",
        "model",
        "",
    ],
)
def test_what_is_no_module_of_the_plan_has_no_facts(module: str) -> None:
    assert describe_module(planned("v3-fp8-block"), module) is None


def test_a_plan_without_a_model_has_no_facts() -> None:
    plan = make_plan(in_memory({**BASE, "architectures": ["Unknown"], "model_type": "unknown"}, []))
    assert describe_module(plan, "lm_head") is None
    assert describe_format(plan)["schemes"] == []


DRAFT_MODULES = {
    "model.decoder.self_attn.o_proj": "model.layers.3.self_attn.o_proj",
    "model.decoder.self_attn.fused_qkv_a_proj_with_mqa": "model.layers.3.self_attn.q_a_proj",
    "model.decoder.mlp.experts": "model.layers.3.mlp.experts",
    "model.decoder.input_layernorm": "model.layers.3.input_layernorm",
    "model.eh_proj": "model.layers.3.eh_proj",
    "model.shared_head.norm": "model.layers.3.shared_head.norm",
}


@pytest.mark.parametrize("module", DRAFT_MODULES)
def test_a_draft_module_has_both_its_names(module: str) -> None:
    plan = planned("v3-fp8-block", draft=True)
    found = facts(plan, module)
    assert found["role"] == "draft"
    assert found["registered"][0]["name"].startswith(module)
    assert all(name.startswith("model.layers.3.") for name in names(found["headers"]))
    assert found["headers"]
    in_files = DRAFT_MODULES[module]
    assert facts(plan, in_files) == {**found, "module": in_files}


@pytest.mark.parametrize("layer", [0, 1, 4])
def test_layers_of_the_target_are_no_modules_of_the_draft(layer: int) -> None:
    plan = planned("v3-fp8-block", draft=True)
    assert describe_module(plan, f"model.layers.{layer}.self_attn.o_proj") is None
    assert describe_module(plan, "model.norm") is None


def test_what_a_draft_shares_with_the_target_has_no_parts() -> None:
    found = facts(planned("v3-fp8-block", draft=True), "lm_head")
    assert (found["parts"], found["headers"]) == ([], [])
    assert found["registered"][0]["fill"] == "shared"


NVFP4_FACTS = {
    # excluded by a glob: through the parts, and by name
    FUSED: ("none (BF16)", "quantization.exclude_modules entry '*self_attn*'"),
    ATTN + "kv_b_proj": ("none (BF16)", "quantization.exclude_modules entry '*self_attn*'"),
    LAYER + "mlp.shared_experts.down_proj": (NVFP4, NO_ENTRY),
    EXPERTS: (NVFP4, NO_ENTRY),
    f"{EXPERTS}.7.down_proj": (NVFP4, NO_ENTRY),
    LAYER + "mlp.gate": ("none", UNCONDITIONAL),
    "lm_head": ("none", UNCONDITIONAL),
}


@pytest.mark.parametrize("module", NVFP4_FACTS)
def test_an_exclude_list_names_the_entry_that_decided(module: str) -> None:
    found = facts(planned("v3-nvfp4"), module)
    assert (found["scheme"], found["decided_by"]) == NVFP4_FACTS[module]
    assert found["agree"]


def test_every_part_shows_the_entry_that_means_it() -> None:
    found = facts(planned("v3-nvfp4"), FUSED)
    assert [part["entry"] for part in found["parts"]] == ["*self_attn*"] * 2
    assert [part["entry"] for part in facts(planned("v3-nvfp4"), "lm_head")["parts"]] == ["lm_head"]


def test_a_parameter_for_an_engines_later_step_is_told_as_such() -> None:
    fills = {row["name"]: row["fill"] for row in facts(planned("v3-nvfp4"), EXPERTS)["registered"]}
    assert fills[f"{EXPERTS}.w13_blockscale_swizzled"] == "later"
    assert fills[f"{EXPERTS}.w13_weight"] == "checkpoint"


def test_layers_that_are_excluded_by_different_entries_name_their_own() -> None:
    config = excluding("model.layers.2.self_attn.o_proj", "model.layers.1.self_attn")
    plan = make_plan(in_memory(config))
    decided = [facts(plan, f"model.layers.{n}.self_attn.o_proj")["decided_by"] for n in range(3)]
    field = "quantization_config.modules_to_not_convert entry"
    assert decided == [
        NO_ENTRY,
        f"{field} 'model.layers.1.self_attn'",
        f"{field} 'model.layers.2.self_attn.o_proj'",
    ]


def test_an_excluded_expert_decides_for_all_of_them() -> None:
    entries = [f"{EXPERTS}.{n}.{p}_proj" for n in range(8) for p in ("gate", "up", "down")]
    plan = make_plan(in_memory(excluding(*entries)))
    found = facts(plan, f"{EXPERTS}.5.up_proj")
    assert found["scheme"] == "none (BF16)"
    assert [part["entry"] for part in found["parts"]] == [
        f"{EXPERTS}.5.gate_proj",
        f"{EXPERTS}.5.up_proj",
    ]
    assert facts(plan, "model.layers.2.mlp.experts")["scheme"] == BLOCKS


def test_the_command_line_stands_before_the_exclude_list() -> None:
    plan = planned("v3-nvfp4", nvfp4_attention_fp8=True)
    found = facts(plan, ATTN + "q_b_proj")
    assert found["scheme"] == "fp8 blocks 128x128, quantised on load"
    assert found["decided_by"] == "--nvfp4-attention-fp8 entry 'self_attn.q_b_proj'"
    assert found["parts"] == [{"module": ATTN + "q_b_proj", "entry": "*self_attn*"}]


W4AFP8_FACTS = {
    EXPERTS: INT4,
    f"{EXPERTS}.2.up_proj": INT4,
    f"{EXPERTS}.2.w3": INT4,
    ATTN + "o_proj": BLOCKS,
    LAYER + "mlp.shared_experts.gate_proj": BLOCKS,
    "model.layers.0.mlp.gate_up_proj": BLOCKS,
}


@pytest.mark.parametrize("module", W4AFP8_FACTS)
def test_experts_and_linears_of_w4afp8_differ(module: str) -> None:
    found = facts(planned("v3-w4afp8"), module)
    assert found["scheme"] == W4AFP8_FACTS[module]
    assert found["format"] == f"w4afp8: {INT4}, {BLOCKS}"
    assert found["agree"]


def test_activation_scales_stand_under_other_names() -> None:
    headers = names(facts(planned("v3-w4afp8"), f"{EXPERTS}.2.w3")["headers"])
    assert headers == [f"{EXPERTS}.2.w1.input_scale", f"{EXPERTS}.2.w3.input_scale"]


GROUPS = {
    "config_groups": {
        "group_0": {
            "targets": ["re:.*self_attn.*"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
        },
        "group_1": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "float",
                "strategy": "block",
                "block_structure": [128, 128],
            },
        },
    },
    "ignore": ["lm_head", "re:.*down_proj", "visual"],
    "quant_method": "compressed-tensors",
}
CONFIG = "quantization_config"
ATTENTION = f"{CONFIG}.config_groups.group_0.targets entry 're:.*self_attn.*'"
OTHERS = f"{CONFIG}.config_groups.group_1.targets entry 'Linear'"
GROUP_FACTS = {
    FUSED: ("fp8 per channel", ATTENTION),
    ATTN + "o_proj": ("fp8 per channel", ATTENTION),
    LAYER + "mlp.shared_experts.gate_up_proj": (BLOCKS, OTHERS),
    f"{EXPERTS}.3.gate_proj": (BLOCKS, OTHERS),
    f"{EXPERTS}.3.down_proj": ("none (BF16)", f"{CONFIG}.ignore entry 're:.*down_proj'"),
    LAYER + "mlp.gate": ("none", UNCONDITIONAL),
}


def grouped() -> Checkpoint:
    """Attention per channel, the rest in blocks, every down_proj plain."""
    config = {**BASE, **V3, "quantization_config": GROUPS}
    return in_memory(config, [_grouped(spec) for spec in _grouped_specs()])


def _grouped_specs() -> list[Spec]:
    variants = ("v3-fp8-channel", "v3-fp8-block", "v3-bf16")
    channel, block, plain = (checkpoint_specs(VARIANTS[variant]) for variant in variants)
    return [
        *(spec for spec in channel if "self_attn" in spec.name),
        *(spec for spec in block if not {"self_attn", "down_proj"} & {*spec.name.split(".")}),
        *(spec for spec in plain if "down_proj" in spec.name),
    ]


def _grouped(spec: Spec) -> Spec:
    return spec._replace(name=spec.name.replace("weight_scale_inv", "weight_scale"))


@pytest.mark.parametrize("module", GROUP_FACTS)
def test_groups_of_modules_have_schemes_of_their_own(module: str) -> None:
    plan = make_plan(grouped())
    found = facts(plan, module)
    assert (found["scheme"], found["decided_by"]) == GROUP_FACTS[module]
    assert (plan.verdict, found["agree"]) == ("pass", True)


def test_a_tensor_that_the_config_does_not_expect_is_a_disagreement() -> None:
    checkpoint = in_memory(VARIANTS["v3-fp8-block"])
    name = ATTN + "q_a_proj.weight"
    plan = make_plan(with_dtype(checkpoint, name, "BF16"))
    found = facts(plan, FUSED)
    assert (found["scheme"], found["agree"]) == (BLOCKS, False)
    assert found["disagreements"] == [
        f"{name} is stored as BF16 [128, 256]; expected F8_E4M3 [128, 256]"
    ]
    assert facts(plan, FUSED.replace("layers.1", "layers.2"))["agree"]
    assert facts(plan, ATTN + "o_proj")["agree"]


def test_a_wrong_shape_is_a_disagreement() -> None:
    checkpoint = in_memory(VARIANTS["v3-fp8-block"])
    name = ATTN + "o_proj.weight_scale_inv"
    found = facts(make_plan(with_shape(checkpoint, name, (2, 5))), ATTN + "o_proj")
    assert found["disagreements"] == [f"{name} is stored as F32 [2, 5]; expected F32 [2, 4]"]


def test_quantised_tensors_without_a_config_entry_disagree() -> None:
    plan = make_plan(in_memory({**BASE, **V3}, checkpoint_specs(VARIANTS["v3-fp8-block"])))
    found = facts(plan, ATTN + "o_proj")
    assert (found["scheme"], found["agree"]) == ("none (BF16)", False)


def test_a_disagreement_of_one_expert_shows_in_all_and_in_its_own() -> None:
    checkpoint = in_memory(VARIANTS["v3-fp8-block"])
    plan = make_plan(with_dtype(checkpoint, f"{EXPERTS}.5.up_proj.weight", "BF16"))
    assert [facts(plan, m)["agree"] for m in (EXPERTS, f"{EXPERTS}.5.gate_proj")] == [False] * 2
    assert facts(plan, f"{EXPERTS}.4.gate_proj")["agree"]
    assert facts(plan, EXPERTS)["headers_total"] == 7
    assert facts(plan, EXPERTS.replace("layers.1", "layers.2"))["headers_total"] == 6


def test_many_disagreements_are_cut_short() -> None:
    checkpoint = in_memory(VARIANTS["v3-fp8-block"])
    for expert in range(8):
        for projection in ("gate_proj", "up_proj"):
            name = f"{EXPERTS}.{expert}.{projection}.weight"
            checkpoint = with_dtype(checkpoint, name, "BF16")
    found = facts(make_plan(checkpoint), EXPERTS)
    assert (len(found["headers"]), len(found["disagreements"])) == (12, 12)
    assert found["headers_total"] == 6 + 14


def test_the_format_counts_entries_that_mean_no_module() -> None:
    found = describe_format(make_plan(grouped()))
    assert (found["method"], found["entries_total"], found["matched"]) == (
        "compressed-tensors",
        5,
        4,
    )
    assert found["never_matched"] == {"count": 1, "examples": ["visual"]}
    assert found["fields"]["ignore"] == GROUPS["ignore"]


def test_an_entry_for_the_draft_is_no_idle_entry_of_the_target() -> None:
    found = describe_format(planned("v3-nvfp4"))
    assert found["entries_total"] == found["matched"] == 5
    assert found["never_matched"] == {"count": 0, "examples": []}
    assert found["fields"]["exclude_modules"] == "5 entries"


def test_the_format_lists_who_has_which_scheme() -> None:
    rows = {row["scheme"]: row for row in describe_format(planned("v3-w4afp8"))["schemes"]}
    assert rows.keys() == {"none", INT4, BLOCKS}
    assert rows[INT4]["modules"] == ["model.layers.{layer}.mlp.experts"]
    assert (rows[INT4]["layers"], rows[BLOCKS]["layers"]) == ("1-2", "0-2")
    assert "lm_head" in rows["none"]["modules"]


def test_a_drafts_schemes_stand_in_its_layer() -> None:
    rows = describe_format(planned("v3-fp8-block", draft=True))["schemes"]
    assert {row["scheme"]: row["layers"] for row in rows} == {"none": "3", BLOCKS: "3"}


def test_an_unquantised_model_has_a_format_too() -> None:
    found = describe_format(planned("v3-bf16"))
    assert (found["method"], found["fields"], found["entries_total"]) == ("none", {}, 0)
    assert facts(planned("v3-bf16"), ATTN + "o_proj")["scheme"] == "none (BF16)"


@pytest.mark.parametrize("is_fused", [True, False])
def test_the_indexer_is_floats_where_it_is_fused(is_fused: bool) -> None:
    config = {**BASE, **V32, **FP8}
    plan = make_plan(in_memory(config), options=Options(indexer_fusion=is_fused))
    found = facts(plan, ATTN + "indexer.wk")
    fused, own = ATTN + "indexer.wk_weights_proj.weight", ATTN + "indexer.wk.weight"
    assert found["registered"][0]["name"] == (fused if is_fused else own)
    assert found["scheme"] == ("none" if is_fused else BLOCKS)
    assert f"{own}_scale_inv" in names(found["headers"])
    assert found["agree"]
