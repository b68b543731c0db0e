"""Kernels against the recorded kv_b halves and pre-quantised weights of the reference loader."""

import gzip
import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support.golden_checkpoint import golden_specs, tensor_bytes

from loadscope.kernels.dequantise_awq import dequantise_awq
from loadscope.kernels.dequantise_block import dequantise_block
from loadscope.kernels.dequantise_channel_int8 import dequantise_channel_int8
from loadscope.kernels.quantise_block_ue8m0 import quantise_block_ue8m0
from loadscope.kernels.quantise_tensor import block_to_tensor, channel_to_tensor, normalise_fnuz

GOLDEN = Path(__file__).parent / "data" / "golden"
Tensors = dict[str, torch.Tensor]
Values = tuple[torch.Tensor, torch.Tensor | None]
DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "I8": torch.int8,
    "I32": torch.int32,
}
BLOCK = (128, 128)


def fnuz(leaves: Tensors, scale: str) -> tuple[torch.Tensor, torch.Tensor]:
    return normalise_fnuz(leaves["weight"], leaves[scale])


# by record: what becomes of kv_b, and the scale that stays beside it
KV_B: dict[str, Callable[[Tensors], Values]] = {
    "v3-fp8-block": lambda t: (dequantise_block(t["weight"], t["weight_scale_inv"]), None),
    "v3-fp8-block@generic": lambda t: block_to_tensor(t["weight"], t["weight_scale_inv"], BLOCK),
    "v3-fp8-block@hipfnuz": lambda t: block_to_tensor(*fnuz(t, "weight_scale_inv"), BLOCK),
    "v3-fp8-channel": lambda t: channel_to_tensor(t["weight"], t["weight_scale"]),
    "v3-fp8-channel@hipfnuz": lambda t: channel_to_tensor(*fnuz(t, "weight_scale")),
    "v3-fp8-tensor": lambda t: channel_to_tensor(t["weight"], t["weight_scale"]),
    "v3-fp8-tensor@hipfnuz": lambda t: channel_to_tensor(*fnuz(t, "weight_scale")),
    "v3-int8-channel": lambda t: (dequantise_channel_int8(t["weight"], t["weight_scale"]), None),
    "v3-int8-block": lambda t: (dequantise_block(t["weight"], t["weight_scale_inv"]), None),
    "v3-awq-marlin": lambda t: (dequantise_awq(t["qweight"], t["scales"], t["qzeros"]).t(), None),
}
PRE_QUANTISED = (
    ("model.layers.{}.self_attn.q_b_proj", "model.layers.{}.self_attn.q_b_proj", 0),
    (
        "model.layers.3.mlp.shared_experts.down_proj",
        "model.decoder.mlp.shared_experts.down_proj",
        1,
    ),
)


@cache
def record_of(key: str, draft: int = 0) -> dict[str, Any]:
    """The record of the whole model, or its draft, on one rank."""
    packed = (GOLDEN / f"{key.partition('@')[0]}.jsonl.gz").read_bytes()
    wanted = f'{{"id":"{key}__tp1r0__ep1__pp1r0__nextn{draft}__sef0"'.encode()
    (line,) = (line for line in gzip.decompress(packed).splitlines() if line.startswith(wanted))
    return dict(json.loads(line))


@cache
def leaves_of(variant: str, name: str) -> Tensors:
    """Tensors of one linear layer by the last part of their names."""
    return {
        spec.name.removeprefix(name + "."): torch.frombuffer(
            bytearray(tensor_bytes(spec)), dtype=DTYPES[spec.dtype]
        ).reshape(spec.shape)
        for spec in golden_specs(variant)
        if spec.name.startswith(name + ".")
    }


def facts(tensor: torch.Tensor) -> dict[str, Any]:
    raw = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "sha256": hashlib.sha256(raw).hexdigest(),
    }


def recorded(fact: dict[str, Any]) -> dict[str, Any]:
    return {key: fact[key] for key in ("shape", "dtype", "sha256")}


@pytest.mark.parametrize("layer", range(3))
@pytest.mark.parametrize("key", KV_B)
def test_kv_b_becomes_the_recorded_halves_and_scale(key: str, layer: int) -> None:
    name = f"model.layers.{layer}.self_attn"
    derived = record_of(key)["derived"][name]
    values, scale = KV_B[key](leaves_of(key.partition("@")[0], name + ".kv_b_proj"))
    per_head = values.unflatten(0, (4, 256))
    assert facts(per_head[:, :128]) == recorded(derived["w_kc"])
    assert facts(per_head[:, 128:].transpose(1, 2)) == recorded(derived["w_vc"])
    assert (
        derived["w_scale"] == 1.0 if scale is None else facts(scale) == recorded(derived["w_scale"])
    )


@pytest.mark.parametrize(("source", "target", "draft"), PRE_QUANTISED)
def test_weights_quantised_before_the_load_are_the_recorded_ones(
    source: str, target: str, draft: int
) -> None:
    params = record_of("v3-nvfp4@cuda+both", draft)["params"]
    for layer in range(1 if draft else 3):
        weight = leaves_of("v3-nvfp4", source.format(layer))["weight"]
        codes, scales = quantise_block_ue8m0(weight)
        at = target.format(layer)
        assert facts(codes) == recorded(params[at + ".weight"])
        assert facts(scales) == recorded(params[at + ".weight_scale_inv"])
