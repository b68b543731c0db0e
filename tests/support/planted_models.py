"""Models that between them hold every way in which a slice is placed, at tp 4 ep 2."""

from typing import Any, NamedTuple

from loadscope.loader.checkpoint import Checkpoint
from loadscope.loader.plan import Options, Plan, make_plan
from loadscope.loader.topology import Layout
from support.deepseek_tensors import checkpoint_specs
from support.fused_names import as_engine, as_transformers, fuse_specs, stack_specs
from support.golden_checkpoint import VARIANTS
from support.in_memory import in_memory

LAYOUT = Layout(tp_size=4, ep_size=2)
SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "n_routed_experts": 4,
    "moe_intermediate_size": 512,
    "vocab_size": 500,
}
EXCLUDED = ["lm_head", "*self_attn*", "*embed_tokens*", "*.gate", "model.layers.2*"]


class PlantedModel(NamedTuple):
    config: dict[str, Any]
    options: Options = Options()
    is_fused: bool = False

    @property
    def checkpoint(self) -> Checkpoint:
        specs = checkpoint_specs(self.config)
        if self.is_fused:
            specs = fuse_specs(specs, ["qkv_a", "gate_up"])
            naming = as_engine if "quantization_config" in self.config else as_transformers
            specs = stack_specs(specs, naming)
        return in_memory(self.config, specs)

    def plan(self) -> Plan:
        return make_plan(self.checkpoint, LAYOUT, self.options)


def _config(variant: str) -> dict[str, Any]:
    config = {**VARIANTS[variant], **SIZES}
    if "exclude_modules" in config.get("quantization_config", {}):
        quantised = {**config["quantization_config"], "exclude_modules": EXCLUDED}
        config["quantization_config"] = quantised
    return config


FUSED_SHARED = Options(fuse_shared_experts=True)
MODELS = {
    "fp8 blocks": PlantedModel(_config("v32-fp8-block")),
    "plain, q_lora_rank null": PlantedModel(_config("v2lite-bf16")),
    "shared expert fused": PlantedModel(_config("v3-fp8-block"), FUSED_SHARED),
    "scales per tensor": PlantedModel(_config("v3-fp8-tensor")),
    "scales per row": PlantedModel(_config("v3-int8-channel")),
    "awq": PlantedModel(_config("v3-awq-marlin")),
    "wna16": PlantedModel(_config("v3-awq-marlin"), Options(quantization="moe_wna16")),
    "int4 experts": PlantedModel(_config("v3-w4afp8")),
    "nvfp4, shared expert fused": PlantedModel(_config("v3-nvfp4"), FUSED_SHARED),
    "draft": PlantedModel(_config("v32-fp8-block"), Options(draft=True)),
    "draft, quantised on load": PlantedModel(
        _config("v3-nvfp4"), Options(draft=True, nvfp4_attention_fp8=True, nextn_moe_fp8=True)
    ),
    "plain, fused in the files": PlantedModel(_config("v3-bf16"), is_fused=True),
    "fp8 blocks, fused in the files": PlantedModel(_config("v3-fp8-block"), is_fused=True),
}
