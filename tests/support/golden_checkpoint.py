"""The tiny checkpoints behind the golden records: a function of the name, byte for byte."""

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np

from support.deepseek_tensors import (
    ITEM_BYTES,
    Spec,
    cache_scales,
    checkpoint_specs,
    draft_only_specs,
)
from support.golden_configs import BASE, FP8, V2_LITE, V3, V32, VARIANTS
from support.safetensors_files import write_checkpoint

__all__ = [
    "BASE",
    "FP8",
    "V2_LITE",
    "V3",
    "V32",
    "VARIANTS",
    "golden_specs",
    "tensor_bytes",
    "write_golden_checkpoint",
]

NUM_SHARDS = 3


def write_golden_checkpoint(variant: str, folder: Path) -> Path:
    """Three shards, an index and config.json, equal to the reference's input bytes."""
    shards = _shards(golden_specs(variant))
    return write_checkpoint(folder, VARIANTS[variant], shards, tensor_bytes)


def golden_specs(variant: str) -> list[Spec]:
    config = VARIANTS[variant]
    if variant == "v3-fp8-block-mtponly":
        return draft_only_specs(config)
    extras = _extras(config) if variant == "v3-bf16-extras" else []
    return [*checkpoint_specs(config), *extras]


def _extras(config: dict[str, Any]) -> list[Spec]:
    """Tensors that no parameter waits for."""
    hidden, layers = config["hidden_size"], range(config["num_hidden_layers"] + 1)
    extras = [
        Spec("model.layers.0.mlp.gate_proj.bias", "BF16", (config["intermediate_size"],)),
        Spec("model.layers.1.self_attn.some_unknown.weight", "BF16", (3,)),
        Spec("model.layers.2.mlp.experts.0.gate_proj.bias", "BF16", (256,)),
        Spec("model.extra_top.weight", "BF16", (3,)),
    ]
    for prefix in (f"model.layers.{layer}.self_attn." for layer in layers):
        extras += cache_scales(prefix)
        extras.append(Spec(prefix + "rotary_emb.inv_freq", "F32", (32,), is_scale=True))
        extras.append(Spec(prefix + "o_proj.bias", "BF16", (hidden,)))
    return extras


def tensor_bytes(spec: Spec) -> bytes:
    """Bits seeded by the tensor's name, bent so that every value is finite and of ordinary size."""
    name = _SAME_BYTES.sub(".w13.input_scale", spec.name)
    seed = int(hashlib.sha256(f"0:{name}".encode()).hexdigest(), 16)
    raw = np.random.Generator(np.random.PCG64(seed)).bytes(spec.num_bytes)
    return _BEND[spec.dtype](raw, spec.is_scale)


# gate and up of one expert have one activation scale
_SAME_BYTES = re.compile(r"\.w[13]\.input_scale$")


def _bend_bf16(raw: bytes, is_scale: bool) -> bytes:
    bits = np.frombuffer(raw, "<u2").astype(np.uint32)
    exponent = (118 + ((bits >> 7) & 7)) << 7
    return (_sign(bits, 0x8000, is_scale) | exponent | (bits & 0x7F)).astype("<u2").tobytes()


def _bend_f16(raw: bytes, is_scale: bool) -> bytes:
    bits = np.frombuffer(raw, "<u2").astype(np.uint32)
    exponent = (6 + ((bits >> 10) & 7)) << 10
    return (_sign(bits, 0x8000, is_scale) | exponent | (bits & 0x3FF)).astype("<u2").tobytes()


def _bend_f32(raw: bytes, is_scale: bool) -> bytes:
    bits = np.frombuffer(raw, "<u4").astype(np.uint64)
    exponent = (118 + ((bits >> 23) & 3)) << 23
    sign = _sign(bits, 0x80000000, is_scale)
    return (sign | exponent | (bits & 0x7FFFFF)).astype("<u4").tobytes()


def _bend_e4m3(raw: bytes, is_scale: bool) -> bytes:
    bits = np.frombuffer(raw, np.uint8)
    finite = np.where((bits & 0x7F) == 0x7F, bits - 1, bits)
    return (finite & (0x7F if is_scale else 0xFF)).astype(np.uint8).tobytes()


def _sign(bits: np.ndarray, mask: int, is_scale: bool) -> np.ndarray:
    return bits & (0 if is_scale else mask)


def _as_it_is(raw: bytes, _: bool) -> bytes:
    return raw


_BEND = {
    "BF16": _bend_bf16,
    "F16": _bend_f16,
    "F32": _bend_f32,
    "F8_E4M3": _bend_e4m3,
    "I8": _as_it_is,
    "U8": _as_it_is,
    "I32": _as_it_is,
}


def _shards(specs: list[Spec]) -> dict[str, list[Spec]]:
    shards: dict[str, list[Spec]] = {
        f"model-{number:05d}-of-{NUM_SHARDS:05d}.safetensors": []
        for number in range(1, NUM_SHARDS + 1)
    }
    files = list(shards)
    for spec in sorted(specs, key=lambda spec: (-ITEM_BYTES[spec.dtype], spec.name)):
        digest = hashlib.sha256(spec.name.encode()).digest()
        shards[files[digest[0] % NUM_SHARDS]].append(spec)
    return shards
