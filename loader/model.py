"""config.json to a typed description of the model, with what was missing or wrong in it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadscope.loader.dtypes import TAGS
from loadscope.loader.findings import Finding, finding
from loadscope.loader.topology import compact, mask_of

MODEL_TYPES = {
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "DeepseekV32ForCausalLM": "deepseek_v32",
}
ARCHITECTURES = {model_type: name for name, model_type in MODEL_TYPES.items()}

# field: (lowest value, default by model type; "*" for all). No default: the field is required.
_V3 = ("deepseek_v3", "deepseek_v32")
INTEGERS: dict[str, tuple[int, dict[str, int]]] = {
    "num_hidden_layers": (1, dict.fromkeys(_V3, 61)),
    "num_nextn_predict_layers": (0, {"*": 0}),
    "hidden_size": (1, dict.fromkeys(_V3, 7168)),
    "vocab_size": (1, {**dict.fromkeys(_V3, 129280), "deepseek_v2": 102400}),
    "intermediate_size": (1, dict.fromkeys(_V3, 18432)),
    "moe_intermediate_size": (1, dict.fromkeys(_V3, 2048)),
    "n_routed_experts": (0, {**dict.fromkeys(_V3, 256), "deepseek_v2": 64}),
    "n_shared_experts": (0, {**dict.fromkeys(_V3, 1), "deepseek_v2": 2}),
    "first_k_dense_replace": (0, {**dict.fromkeys(_V3, 3), "deepseek_v2": 0}),
    "moe_layer_freq": (1, {"*": 1}),
    "num_attention_heads": (1, dict.fromkeys(_V3, 128)),
    "kv_lora_rank": (1, {"*": 512}),
    "qk_nope_head_dim": (1, {"*": 128}),
    "qk_rope_head_dim": (1, {"*": 64}),
    "v_head_dim": (1, {"*": 128}),
}
INDEXER_INTEGERS: dict[str, tuple[int, dict[str, int]]] = {
    "index_n_heads": (1, {"deepseek_v32": 64}),
    "index_head_dim": (1, {"deepseek_v32": 128}),
}
# beyond these a number is a mistake, and would only cost time
HIGHEST = {"num_hidden_layers": 9_999, "num_nextn_predict_layers": 64, "n_routed_experts": 65_536}
HIGHEST_SIZE = 2**31
NULL_IS_ZERO = ("num_nextn_predict_layers", "n_routed_experts", "n_shared_experts")
OTHER_FIELDS = ("architectures", "model_type", "dtype", "torch_dtype", "q_lora_rank", "index_topk",
                "topk_method", "tie_word_embeddings", "quantization_config", "compression_config",
                "mlp_layer_types")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Model:
    """The fields of config.json that decide what is loaded; `moe_layers` is a bit mask."""

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
    moe_layers: int
    has_router_bias: bool
    tie_word_embeddings: bool
    index_n_heads: int | None
    index_head_dim: int | None
    quantization: Mapping[str, Any] | None
    defaulted: tuple[str, ...]

    @property
    def layers(self) -> int:
        return mask_of(range(self.num_hidden_layers))

    def as_json(self) -> dict[str, Any]:
        moe = [i for i in range(self.num_hidden_layers) if self.moe_layers >> i & 1]
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
            "moe_layers": compact(moe),
            "has_indexer": self.index_n_heads is not None,
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

    def router_bias(self) -> bool:
        method = self.config.get("topk_method")
        if method is None:
            method = self.default("topk_method", "noaux_tc" if self.model_type in _V3 else "greedy")
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
                return dict(value.get("quantization", value))
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
    has_indexer = model_type == "deepseek_v32" and (
        config.get("index_topk") is not None or "index_topk" not in config
    )
    index = {
        f: reader.integer(f, low, d) if has_indexer else None
        for f, (low, d) in INDEXER_INTEGERS.items()
    }
    model = Model(
        architecture=architecture,
        model_type=model_type,
        dtype=reader.dtype(),
        q_lora_rank=_q_lora_rank(reader),
        moe_layers=moe_layers,
        has_router_bias=reader.router_bias(),
        tie_word_embeddings=reader.boolean("tie_word_embeddings"),
        quantization=reader.quantization(),
        defaulted=tuple(reader.defaulted),
        index_n_heads=index["index_n_heads"],
        index_head_dim=index["index_head_dim"],
        **numbers,
    )
    broken = any(f.level == "error" for f in reader.findings)
    return (None if broken else model), reader.findings


def _q_lora_rank(reader: _Reader) -> int | None:
    if "q_lora_rank" in reader.config or reader.model_type not in _V3:
        return reader.optional("q_lora_rank")
    return int(reader.default("q_lora_rank", 1536))


def _kind(config: Mapping[str, Any]) -> tuple[str, str] | Finding:
    """Architecture and model type; the architecture decides where both are given."""
    listed = config.get("architectures")
    name = listed[0] if isinstance(listed, list) and listed else None
    model_type = MODEL_TYPES.get(str(name)) if name is not None else config.get("model_type")
    if model_type in ARCHITECTURES:
        return (str(name) if name is not None else ARCHITECTURES[str(model_type)]), str(model_type)
    found = f"architectures {listed!r}, model_type {config.get('model_type')!r}"
    return finding(
        "LS204",
        "config.json",
        f"config.json has {found}; this loader knows {', '.join(MODEL_TYPES)}",
        fix="load a DeepSeek V2, V3 or V3.2 checkpoint, or correct architectures",
        evidence={"found": found, "expected": list(MODEL_TYPES)},
    )
