"""Quantisation formats: what each stores per weight, one file each, chosen from the config."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadscope.loader.findings import Finding, finding
from loadscope.loader.formats import (
    awq,
    compressed_tensors,
    fp8,
    int8,
    modelopt_fp4,
    modelopt_fp8,
    w4afp8,
    w8a8_fp8,
)
from loadscope.loader.formats.format import Format, plain_scheme

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Context:
    """What a format may have to know beside its config entry; sizes of one expert on one rank."""

    dtype: str
    hidden_size: int
    expert_width: int
    is_draft: bool = False
    nvfp4_attention_fp8: bool = False
    nextn_moe_fp8: bool = False


READERS: dict[str, Callable[[Config, Context], Format]] = {
    "fp8": fp8.read,
    "w8a8_fp8": w8a8_fp8.read,
    "w8a8_int8": int8.read_channel,
    "blockwise_int8": int8.read_block,
    "awq": awq.read_marlin,
    "awq_marlin": awq.read_marlin,
    "moe_wna16": awq.read_wna16,
    "w4afp8": w4afp8.read,
    "compressed-tensors": compressed_tensors.read,
    "modelopt_fp4": modelopt_fp4.read,
    "modelopt_fp8": modelopt_fp8.read,
}
# modelopt writes an algorithm, not a method
ALGORITHMS = {"FP8": "modelopt_fp8", "NVFP4": "modelopt_fp4", "MIXED_PRECISION": "w4afp8"}


def choose(
    quantization: Config | None, context: Context, override: str | None = None
) -> Format | Finding:
    """The format that the quantisation entry of a config describes, or why there is none."""
    plain = plain_scheme(context.dtype)
    if quantization is None and override is None:
        return Format(plain.name, "none", plain)
    config = quantization if quantization is not None else {}
    if override == "awq":
        return _refuse("--quantization awq", NO_AWQ_EXPERTS)
    method = override if override is not None else method_of(config)
    reader = READERS.get(method)
    if reader is None:
        return _refuse(f"method {method!r}", f"one of {', '.join(sorted(READERS))}, or no entry")
    try:
        return reader(config, context)
    except ValueError as error:
        return _refuse(str(error))


NO_AWQ_EXPERTS = (
    "awq_marlin or moe_wna16: plain awq has no fused experts, and every expert tensor would be lost"
)


def method_of(config: Config) -> str:
    """The method's name; an algorithm of modelopt counts if the method does not say more."""
    method = config.get("quant_method")
    if method in (None, "modelopt") and config.get("quant_algo") is not None:
        algorithm = str(config["quant_algo"])
        return ALGORITHMS.get(algorithm, f"{method or 'modelopt'} {algorithm}")
    return {"compressed_tensors": "compressed-tensors"}.get(str(method), str(method))


def _refuse(found: str, expected: str | None = None) -> Finding:
    wanted = "" if expected is None else f"; expected {expected}"
    return finding(
        "LS205",
        "quantization_config",
        f"quantisation not supported: {found}{wanted}",
        fix="load a checkpoint in a supported format, or correct quantization_config",
        evidence={"found": found, "expected": expected},
    )
