"""Quantisation formats: what each stores per weight, one file each, chosen from the config."""

from collections.abc import Callable, Mapping
from typing import Any

from loadscope.loader.findings import Finding, finding
from loadscope.loader.formats import fp8_block, plain
from loadscope.loader.tables import Format

READERS: dict[str, Callable[[Mapping[str, Any]], Format]] = {"fp8": fp8_block.read}


def choose(quantization: Mapping[str, Any] | None, dtype: str) -> Format | Finding:
    """The format that the quantisation entry of a config describes, or why there is none."""
    if quantization is None:
        return plain.make(dtype)
    method = quantization.get("quant_method", quantization.get("quant_algo"))
    reader = READERS.get(str(method))
    if reader is None:
        return _refuse(f"quant_method {method!r}", f"one of {sorted(READERS)}, or no entry")
    try:
        return reader(quantization)
    except ValueError as error:
        return _refuse(str(error), "fp8 with weight_block_size [128, 128]")


def _refuse(found: str, expected: str) -> Finding:
    return finding(
        "LS205",
        "quantization_config",
        f"config.json: quantization_config has {found}; expected {expected}",
        fix="load a checkpoint in a supported format, or correct quantization_config",
        evidence={"found": found, "expected": expected},
    )


def check_platform(form: Format, platform: str) -> Finding | None:
    """Why a platform cannot be planned with this format; None if it can."""
    if not form.has_kv_scales and platform != "npu":
        return None
    if form.has_kv_scales and platform in ("cuda", "xpu"):
        return None
    return finding(
        "LS205",
        "platform",
        f"platform {platform} with {form.name}: its derived tensors are not supported",
        fix="plan for --platform cuda",
        evidence={"platform": platform, "format": form.name},
    )
