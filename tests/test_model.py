"""config.json to a model: every field that is wrong is named, and nothing is guessed in silence."""

import json
from dataclasses import replace
from typing import Any

import pytest
from support.deepseek_tensors import checkpoint_specs
from support.golden_checkpoint import VARIANTS
from support.in_memory import in_memory

from loadscope.loader.model import apply_overrides, describe
from loadscope.loader.plan import Options, make_plan

CONFIG: dict[str, Any] = {**VARIANTS["v32-fp8-block"]}

WRONG = [
    ("hidden_size", "abc"),
    ("hidden_size", True),
    ("hidden_size", 256.0),
    ("hidden_size", 2**40),
    ("hidden_size", None),
    ("num_hidden_layers", 0),
    ("num_hidden_layers", 10**9),
    ("n_routed_experts", 10**8),
    ("q_lora_rank", -1),
    ("num_nextn_predict_layers", -1),
    ("moe_layer_freq", 0),
    ("index_head_dim", "128"),
    ("torch_dtype", "int8"),
    ("topk_method", "best"),
    ("tie_word_embeddings", "no"),
    ("mlp_layer_types", ["dense"]),
    ("mlp_layer_types", ["dense", "sparse", "odd"]),
    ("quantization_config", [128, 128]),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_field_is_named_with_what_was_found(field: str, value: object) -> None:
    config = {**CONFIG, field: value}
    if field == "hidden_size" and value is None:
        config["architectures"], config["model_type"] = ["DeepseekV2ForCausalLM"], "deepseek_v2"
    model, findings = describe(config)
    errors = [f for f in findings if f.level == "error"]
    assert model is None
    assert [(f.code, f.subject) for f in errors] == [("LS202", field)]
    assert repr(value) in errors[0].message


@pytest.mark.parametrize(
    "architectures", [[], ["LlamaForCausalLM"], "DeepseekV3ForCausalLM ", None, {}]
)
def test_an_unknown_architecture_names_the_known_ones(architectures: object) -> None:
    config = {**CONFIG, "architectures": architectures, "model_type": "llama"}
    model, findings = describe(config)
    assert model is None
    assert findings[0].code == "LS204"
    assert "DeepseekV32ForCausalLM" in findings[0].message


def test_missing_fields_take_the_default_of_the_model_type_and_say_so() -> None:
    config = {key: CONFIG[key] for key in ("architectures", "torch_dtype")}
    model, findings = describe(config)
    assert model is not None
    assert (model.hidden_size, model.n_routed_experts, model.index_n_heads) == (7168, 256, 64)
    assert {f.code for f in findings} == {"LS203"}
    assert {f.subject for f in findings} == set(model.defaulted)


def test_null_counts_as_no_draft_layer() -> None:
    model, findings = describe({**CONFIG, "num_nextn_predict_layers": None})
    assert model is not None
    assert model.num_nextn_predict_layers == 0
    assert not findings


def test_a_shape_error_that_follows_from_a_default_names_the_default() -> None:
    config = {key: value for key, value in CONFIG.items() if key != "moe_intermediate_size"}
    tensors = in_memory(CONFIG)
    plan = make_plan(replace(tensors, config=config))
    wrong = [f for f in plan.findings if f.code == "LS401"]
    assert wrong
    assert all("moe_intermediate_size was not in config.json" in f.message for f in wrong)


def test_overrides_are_json_values_and_reach_into_objects() -> None:
    pairs = (
        ("num_hidden_layers", "2"),
        ("config.torch_dtype", "float16"),
        ("quantization_config.weight_block_size", "[64, 64]"),
    )
    merged, findings = apply_overrides(CONFIG, pairs)
    assert merged["num_hidden_layers"] == 2
    assert merged["torch_dtype"] == "float16"
    assert merged["quantization_config"]["weight_block_size"] == [64, 64]
    assert CONFIG["quantization_config"]["weight_block_size"] == [128, 128]
    assert findings == []


def test_an_override_that_decides_nothing_is_a_warning() -> None:
    _merged, findings = apply_overrides(CONFIG, (("hiden_size", "2"),))
    assert [(f.code, f.subject, f.level) for f in findings] == [("LS211", "hiden_size", "warning")]


def test_fewer_layers_on_purpose_warns_and_by_mistake_fails() -> None:
    checkpoint = in_memory(CONFIG)
    asked = make_plan(checkpoint, options=Options(overrides=(("num_hidden_layers", "1"),)))
    assert asked.verdict == "pass"
    assert ("LS209", "warning") in {(f.code, f.level) for f in asked.findings}
    config = {**CONFIG, "num_hidden_layers": 1}
    mistaken = make_plan(replace(checkpoint, config=config))
    assert mistaken.verdict == "fail"
    assert any(f.code == "LS208" and f.subject == "num_hidden_layers" for f in mistaken.findings)


@pytest.mark.parametrize(
    "entry",
    [
        {"quant_method": "awq"},
        {"quant_method": "fp8", "activation_scheme": "sometimes"},
        {"quant_method": "fp8", "weight_block_size": [64]},
        {"quant_method": "awq", "bits": 8, "group_size": 128},
        {"quant_method": "compressed-tensors"},
        {"quant_method": "gptq"},
        {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "static"},
        {"quant_method": "fp8", "weight_block_size": [128, 128], "ignored_layers": "lm_head"},
        {},
    ],
)
def test_a_quantisation_that_is_not_supported_is_refused_with_what_was_found(entry: Any) -> None:
    specs = checkpoint_specs(dict(CONFIG))
    plan = make_plan(in_memory({**CONFIG, "quantization_config": entry}, specs))
    assert [f.code for f in plan.findings if f.level == "error"] == ["LS205"]
    assert json.dumps(plan.findings[0].as_json())


def test_excluded_modules_are_expected_unquantised_and_others_not() -> None:
    entry = {**CONFIG["quantization_config"], "ignored_layers": ["model.layers.1.self_attn.o_proj"]}
    config = {**CONFIG, "quantization_config": entry}
    name = "model.layers.1.self_attn.o_proj."
    specs = []
    for spec in checkpoint_specs(dict(CONFIG)):
        if spec.name == name + "weight":
            spec = spec._replace(dtype="BF16")
        if spec.name != name + "weight_scale_inv":
            specs.append(spec)
    assert make_plan(in_memory(config, specs)).verdict == "pass"
    torn = make_plan(in_memory(CONFIG, specs))
    wrong = [f for f in torn.findings if f.code == "LS403"]
    assert wrong
    assert wrong[0].subject == name + "weight"
    assert "quantization_config.quant_method = fp8" in wrong[0].message


def test_a_pair_excluded_in_one_layer_is_still_a_pair_in_the_others() -> None:
    entry = {
        **CONFIG["quantization_config"],
        "modules_to_not_convert": ["model.layers.1.self_attn"],
    }
    specs = []
    for spec in checkpoint_specs(dict(CONFIG)):
        if spec.name.startswith("model.layers.1.self_attn") and spec.dtype == "F8_E4M3":
            spec = spec._replace(dtype="BF16")
        elif spec.name.startswith("model.layers.1.self_attn") and "scale" in spec.name:
            continue
        specs.append(spec)
    plan = make_plan(in_memory({**CONFIG, "quantization_config": entry}, specs))
    assert [f.message for f in plan.findings if f.level == "error"] == []


def test_include_lists_that_tear_the_parts_of_one_parameter_are_an_error() -> None:
    def errors(*targets: str) -> list[str]:
        weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
        group = {"targets": list(targets), "weights": weights}
        entry = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
        config = {**CONFIG, "quantization_config": entry}
        plan = make_plan(in_memory(config, checkpoint_specs(dict(CONFIG))))
        return [f.subject for f in plan.findings if f.code == "LS212"]

    fused = "model.layers.{layer}.self_attn.fused_qkv_a_proj_with_mqa.{leaf}"
    assert errors("re:.*q_a_proj$") == [fused]
    assert errors("re:.*q_a_proj$", "kv_a_proj_with_mqa") == []
    assert errors("Linear") == []
