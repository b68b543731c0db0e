"""config.json to a typed description of the model, with what was missing or wrong in it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from loadscope.loader.dtypes import TAGS
from loadscope.loader.findings import Finding, finding
from loadscope.loader.topology import compact, layers_in, mask_of

MODEL_TYPES = {
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "GlmMoeDsaForCausalLM": "glm_moe_dsa",
}
ARCHITECTURES = {model_type: name for name, model_type in MODEL_TYPES.items()}
# model types that use another one's architecture
ARCHITECTURES["kimi_k2"] = "DeepseekV3ForCausalLM"
SPARSE = ("deepseek_v32", "glm_moe_dsa")

# field: (lowest value, default by model type; "*" for all). No default: the field is required.
_V3 = ("deepseek_v3", "deepseek_v32")
_NEW = (*_V3, "kimi_k2", "glm_moe_dsa")


def _by_type(v3: int, kimi: int, glm: int, **others: int) -> dict[str, int]:
    return {**dict.fromkeys(_V3, v3), "kimi_k2": kimi, "glm_moe_dsa": glm, **others}


INTEGERS: dict[str, tuple[int, dict[str, int]]] = {
    "num_hidden_layers": (1, _by_type(61, 61, 78)),
    "num_nextn_predict_layers": (0, {"*": 0}),
    "hidden_size": (1, _by_type(7168, 7168, 6144)),
    "vocab_size": (1, _by_type(129280, 163840, 154880, deepseek_v2=102400)),
    "intermediate_size": (1, _by_type(18432, 18432, 12288)),
    "moe_intermediate_size": (1, _by_type(2048, 2048, 2048)),
    "n_routed_experts": (0, _by_type(256, 384, 256, deepseek_v2=64)),
    "n_shared_experts": (0, _by_type(1, 1, 1, deepseek_v2=2)),
    "first_k_dense_replace": (0, _by_type(3, 1, 3, deepseek_v2=0)),
    "moe_layer_freq": (1, {"*": 1}),
    "num_attention_heads": (1, _by_type(128, 64, 64)),
    "kv_lora_rank": (1, {"*": 512}),
    "qk_nope_head_dim": (1, {"*": 128, "glm_moe_dsa": 192}),
    "qk_rope_head_dim": (1, {"*": 64}),
    "v_head_dim": (1, {"*": 128, "glm_moe_dsa": 256}),
}
INDEXER_INTEGERS: dict[str, tuple[int, dict[str, int]]] = {
    "index_n_heads": (1, {"deepseek_v32": 64, "glm_moe_dsa": 32}),
    "index_head_dim": (1, dict.fromkeys(SPARSE, 128)),
}
# beyond these a number is a mistake, and would only cost time
HIGHEST = {"num_hidden_layers": 9_999, "num_nextn_predict_layers": 64, "n_routed_experts": 65_536}
HIGHEST_SIZE = 2**31
NULL_IS_ZERO = ("num_nextn_predict_layers", "n_routed_experts", "n_shared_experts")
OTHER_FIELDS = ("architectures", "model_type", "dtype", "torch_dtype", "q_lora_rank", "index_topk",
                "topk_method", "tie_word_embeddings", "quantization_config", "compression_config",
                "mlp_layer_types", "router_fp32", "index_k_norm_type", "indexer_types",
                "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Model:
    """The fields of config.json that decide what is loaded; layers are bit masks.

    For a draft `layers` is its one layer, everything else the target's.
    """

    architecture: str
    model_type: str
    dtype: str
    num_hidden_layers: int
    num_nextn_predict_layers: int
    hidden_size: int
    vocab_size: int
    intermediate_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_attention_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    layers: int
    moe_layers: int
    indexer_layers: int
    has_router_bias: bool
    router_fp32: bool
    tie_word_embeddings: bool
    index_n_heads: int | None
    index_head_dim: int | None
    index_k_norm_has_bias: bool
    quantization: Mapping[str, Any] | None
    defaulted: tuple[str, ...]

    def draft(self, layer: int) -> "Model":
        """The same model as its draft: one layer, with experts where the model has any."""
        mask = 1 << layer
        return replace(
            self,
            layers=mask,
            moe_layers=mask if self.n_routed_experts else 0,
            indexer_layers=mask if self.index_n_heads is not None else 0,
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "architecture": self.architecture,
            "model_type": self.model_type,
            "dtype": self.dtype,
            "num_hidden_layers": self.num_hidden_layers,
            "num_nextn_predict_layers": self.num_nextn_predict_layers,
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab_size,
            "num_attention_heads": self.num_attention_heads,
            "n_routed_experts": self.n_routed_experts,
            "n_shared_experts": self.n_shared_experts,
            "q_lora_rank": self.q_lora_rank,
            "kv_lora_rank": self.kv_lora_rank,
            "moe_layers": compact(layers_in(self.moe_layers)),
            "has_indexer": self.index_n_heads is not None,
            "indexer_layers": compact(layers_in(self.indexer_layers)),
            "defaulted": list(self.defaulted),
        }


def apply_overrides(
    config: Mapping[str, Any], overrides: tuple[tuple[str, str], ...]
) -> tuple[dict[str, Any], list[Finding]]:
    """The config with `--set field=value` applied (JSON values, else text); dots nest."""
    merged: dict[str, Any] = json.loads(json.dumps(config))
    findings = []
    for field, text in overrides:
        path = field.removeprefix("config.").split(".")
        if path[0] not in {*INTEGERS, *INDEXER_INTEGERS, *OTHER_FIELDS}:
            findings.append(_unused_override(field))
        place = merged
        for key in path[:-1]:
            inner = place.get(key)
            place[key] = place = dict(inner) if isinstance(inner, dict) else {}
        place[path[-1]] = _parse(text)
    return merged, findings


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _unused_override(field: str) -> Finding:
    return finding(
        "LS211",
        field,
        f"--set {field}=…: no loading decision uses this config field",
        fix="check the spelling of the field",
    )


class _Reader:
    """Reads fields one by one and collects what is missing or of the wrong type."""

    def __init__(self, config: Mapping[str, Any], model_type: str) -> None:
        self.config = config
        self.model_type = model_type
        self.findings: list[Finding] = []
        self.defaulted: list[str] = []

    def default(self, field: str, value: Any) -> Any:
        self.defaulted.append(field)
        self.findings.append(
            finding(
                "LS203",
                field,
                f"config.json has no {field}; {value!r} is used, the default of {self.model_type}",
                fix=f"add {field} to config.json if the default is not right",
                evidence={"field": field, "default": value},
            )
        )
        return value

    def wrong(self, field: str, expected: str) -> None:
        found = self.config.get(field)
        what = "is missing" if field not in self.config else f"is {found!r}"
        self.findings.append(
            finding(
                "LS202",
                field,
                f"config.json: {field} {what}; expected {expected}",
                fix=f"correct {field} in config.json, or give --set {field}=VALUE",
                evidence={"field": field, "found": found, "expected": expected},
            )
        )

    def integer(self, field: str, lowest: int, defaults: Mapping[str, int]) -> int:
        value = self.config.get(field)
        if value is None and field in NULL_IS_ZERO and self._may_be_absent(field):
            return 0
        if (
            value is None
            and (default := defaults.get(self.model_type, defaults.get("*"))) is not None
        ):
            return int(self.default(field, default))
        highest = HIGHEST.get(field, HIGHEST_SIZE)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            self.wrong(field, f"a whole number from {lowest} to {highest}")
            return max(lowest, 1)
        return value

    def _may_be_absent(self, field: str) -> bool:
        """null means zero; V2 has no draft layer and no field for it."""
        return field in self.config or self.model_type == "deepseek_v2" and "nextn" in field

    def optional(self, field: str) -> int | None:
        return None if self.config.get(field) is None else self.integer(field, 1, {})

    def boolean(self, field: str) -> bool:
        value = self.config.get(field)
        if value not in (None, True, False):
            self.wrong(field, "true or false")
        return value is True

    def dtype(self) -> str:
        field = "dtype" if self.config.get("dtype") is not None else "torch_dtype"
        name = self.config.get(field)
        if name is None:
            return str(self.default("torch_dtype", "bfloat16")) and "BF16"
        tag = TAGS.get(str(name))
        if tag not in ("BF16", "F16", "F32"):
            self.wrong(field, "bfloat16, float16 or float32")
            return "BF16"
        return tag

    def moe_layers(self, layers: int, routed: int, first_dense: int, freq: int) -> int:
        types = self.config.get("mlp_layer_types")
        if types is not None:
            return self._listed_moe_layers(types, layers)
        if routed == 0:
            return 0
        return sum(1 << i for i in range(first_dense, layers) if i % freq == 0)

    def _listed_moe_layers(self, types: Any, layers: int) -> int:
        known = isinstance(types, list) and set(map(str, types)) <= {"sparse", "dense"}
        if not known or len(types) < layers:
            self.wrong("mlp_layer_types", f"a list of {layers} entries 'sparse' or 'dense'")
            return 0
        return sum(1 << i for i in range(layers) if types[i] == "sparse")

    def indexer_layers(self, layers: int) -> int:
        """Layers with an indexer of their own; the others take the choice of the one before.

        By kind (`indexer_types`), by letter (`index_topk_pattern`, F or S), else every
        `index_topk_freq`-th from `index_skip_topk_offset` on, as GLM-5 configs mean them.
        """
        for field, own, others in (
            ("indexer_types", "full", "shared"),
            ("index_topk_pattern", "F", "S"),
        ):
            kinds = self.config.get(field)
            if kinds is None:
                continue
            known = isinstance(kinds, str | list) and all(k in (own, others) for k in kinds)
            if not known:
                self.wrong(field, f"{own!r} or {others!r} for each layer")
                return 0
            # a pattern that ends early leaves the rest their own
            return sum(1 << i for i in range(layers) if i >= len(kinds) or kinds[i] == own)
        freq = self.config.get("index_topk_freq")
        if freq is None:
            return mask_of(range(layers))
        freq = self.integer("index_topk_freq", 1, {})
        offset = self.config.get("index_skip_topk_offset")
        start = 2 if offset is None else self.integer("index_skip_topk_offset", 0, {})
        return sum(1 << i for i in range(layers) if max(i - start + 1, 0) % freq == 0)

    def router_bias(self) -> bool:
        method = self.config.get("topk_method")
        if method is None:
            method = self.default(
                "topk_method", "noaux_tc" if self.model_type in _NEW else "greedy"
            )
        if method not in ("noaux_tc", "greedy", "group_limited_greedy"):
            self.wrong("topk_method", "noaux_tc, greedy or group_limited_greedy")
        return bool(method == "noaux_tc")

    def quantization(self) -> Mapping[str, Any] | None:
        for field in ("quantization_config", "compression_config", "_hf_quant_config"):
            value = self.config.get(field)
            if value is not None and not isinstance(value, dict):
                self.wrong(field, "an object")
                return None
            if value is not None:
                inner = value.get("quantization", {})
                return {**value, **(inner if isinstance(inner, dict) else {})}
        return None


def describe(config: Mapping[str, Any]) -> tuple[Model | None, list[Finding]]:
    """The model that a config describes, with notes on defaults; None if it cannot be known."""
    kind = _kind(config)
    if isinstance(kind, Finding):
        return None, [kind]
    architecture, model_type = kind
    reader = _Reader(config, model_type)
    numbers = {f: reader.integer(f, low, d) for f, (low, d) in INTEGERS.items()}
    moe_layers = reader.moe_layers(
        numbers["num_hidden_layers"],
        numbers["n_routed_experts"],
        numbers.pop("first_k_dense_replace"),
        numbers.pop("moe_layer_freq"),
    )
    has_indexer = model_type in SPARSE and (
        config.get("index_topk") is not None or "index_topk" not in config
    )
    layers = numbers["num_hidden_layers"]
    index = {
        f: reader.integer(f, low, d) if has_indexer else None
        for f, (low, d) in INDEXER_INTEGERS.items()
    }
    model = Model(
        architecture=architecture,
        model_type=model_type,
        dtype=reader.dtype(),
        q_lora_rank=_q_lora_rank(reader),
        layers=mask_of(range(layers)),
        moe_layers=moe_layers,
        indexer_layers=reader.indexer_layers(layers) if has_indexer else 0,
        has_router_bias=reader.router_bias(),
        router_fp32=reader.boolean("router_fp32"),
        tie_word_embeddings=reader.boolean("tie_word_embeddings"),
        quantization=reader.quantization(),
        defaulted=tuple(reader.defaulted),
        index_n_heads=index["index_n_heads"],
        index_head_dim=index["index_head_dim"],
        index_k_norm_has_bias=config.get("index_k_norm_type") != "rms",
        **numbers,
    )
    broken = any(f.level == "error" for f in reader.findings)
    return (None if broken else model), reader.findings


def _q_lora_rank(reader: _Reader) -> int | None:
    if "q_lora_rank" in reader.config or reader.model_type not in _NEW:
        return reader.optional("q_lora_rank")
    return int(reader.default("q_lora_rank", 2048 if reader.model_type == "glm_moe_dsa" else 1536))


def _kind(config: Mapping[str, Any]) -> tuple[str, str] | Finding:
    """Architecture and model type; the architecture decides where both are given."""
    listed = config.get("architectures")
    name = listed[0] if isinstance(listed, list) and listed else None
    given = config.get("model_type")
    model_type = MODEL_TYPES.get(str(name)) if name is not None else given
    if name is not None and ARCHITECTURES.get(str(given)) == name:
        model_type = given
    if model_type in ARCHITECTURES:
        return (str(name) if name is not None else ARCHITECTURES[str(model_type)]), str(model_type)
    found = f"architectures {listed!r}, model_type {config.get('model_type')!r}"
    return finding(
        "LS204",
        "config.json",
        f"config.json has {found}; this loader knows {', '.join(MODEL_TYPES)}",
        fix="load a DeepSeek, Kimi-K2 or GLM-5 checkpoint, or correct architectures",
        evidence={"found": found, "expected": list(MODEL_TYPES)},
    )
