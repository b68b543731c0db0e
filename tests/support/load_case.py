"""One load: a small model in some format, a layout and options; the smallest legal one."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import Any

import torch

from support.expected_rank import Asked
from support.golden_configs import BASE, V3
from support.legal_sizes import head_sizes
from support.made_model import MadeModel, Wishes, make_model
from support.quantised_formats import FORMS, Form
from support.stored import Storage

PLATFORMS = ("cuda", "hip", "hip-fnuz", "npu", "xpu", "musa", "cpu")


@dataclass(frozen=True, slots=True)
class Load:
    """Everything that one load is decided by; short to print, for failures."""

    form_name: str
    config: Mapping[str, Any]
    asked: Asked
    excluded: tuple[str, ...] = ()
    platform: str = "cuda"
    seed: int = 0
    has_cache_scales: bool = False
    router_dtype: str | None = None
    quantises_weights_proj: bool = False

    @property
    def form(self) -> Form:
        return FORMS[self.form_name]

    def storage(self, module: str) -> Storage:
        """How the files have a module: what the config excludes is plain."""
        form = self.form
        chosen = form.expert if ".mlp.experts." in module else form.linear
        is_plain = any(holds(name, module) for name in self.excluded)
        return chosen.plain if is_plain or self.is_plain_draft(module) else chosen

    def is_plain_draft(self, module: str) -> bool:
        """Drafts of NVFP4 models are stored and built in floats, whatever the config lists."""
        draft = f"model.layers.{self.config['num_hidden_layers']}."
        return self.form.linear.kind == "nvfp4" and module.startswith(draft)

    def model(self) -> MadeModel:
        router = None if self.router_dtype is None else getattr(torch, self.router_dtype)
        wishes = Wishes(
            self.storage, self.seed, self.has_cache_scales, router, self.quantises_weights_proj
        )
        return make_model(dict(self.config), wishes)


def holds(name: str, module: str) -> bool:
    """Whether a listed module is this one, or one around it; a bare one is meant in any layer."""
    return f".{name}." in f".{module}."


def small_load(form: Form, *, tp: int, ep: int = 1, **more: Any) -> Load:
    """A small legal model of a format: a dense and an expert layer, two groups in every row."""
    both = lcm(form.rows, form.columns, 8)
    nope, rope, value = head_sizes(form, 1)[0]
    config = {
        **BASE,
        **V3,
        "torch_dtype": str(form.linear.floats).removeprefix("torch."),
        "hidden_size": 2 * lcm(8, form.columns),
        "q_lora_rank": 2 * both,
        "kv_lora_rank": 2 * form.columns if form.is_even else form.columns + 24,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
        "num_attention_heads": tp,
        "intermediate_size": both * tp,
        "moe_intermediate_size": both * tp,
        "n_routed_experts": 2 * tp,
        "vocab_size": 100,
        "num_hidden_layers": 2,
        "num_nextn_predict_layers": 0,
        **more.pop("config", {}),
    }
    if form.entry:
        config["quantization_config"] = dict(form.entry)
    asked = Asked(
        tp, ep, has_cache_scales=form.has_cache_scales, is_wna16=form.is_wna16,
        **more.pop("asked", {}),
    )  # fmt: skip
    return Load(form.name, config, asked, **more)
