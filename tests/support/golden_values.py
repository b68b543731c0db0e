"""Values that differ from the reference's on purpose, computed here from the files' bytes."""

import hashlib
from functools import cache

import torch
from torch import Tensor

from support.golden_checkpoint import golden_specs, tensor_bytes
from support.golden_records import Record, draft_layer_of, records, variant_of
from support.linear_specs import Spec

FUSED = "fused_qkv_a_proj_with_mqa"
HALVES = ("q_a_proj", "kv_a_proj_with_mqa")
LARGEST = 448.0


@cache
def larger_scale(record_id: str, param: str) -> str:
    """sha256 of a fused parameter's per-tensor scale: the larger half's."""
    return _sha256(max(_halves(records()[record_id], param)).reshape(1))


@cache
def rescaled_codes(record_id: str, param: str) -> str:
    """sha256 of a fused weight whose halves were moved from their own scale to the larger one."""
    record = records()[record_id]
    scales = _halves(record, param.replace(".weight", ".weight_scale"))
    moved = [
        (codes.float() * scale / max(scales)).clamp(-LARGEST, LARGEST)
        for codes, scale in zip(_halves(record, param), scales, strict=True)
    ]
    return _sha256(torch.cat(moved).to(torch.float8_e4m3fn))


@cache
def larger_of_gate_and_up(record_id: str, param: str) -> str:
    """sha256 of an expert activation scale: per slot the larger of gate's and up's."""
    record = records()[record_id]
    slots = torch.zeros(record["params"][param]["shape"])
    for name, events in record["outcomes"].items():
        if events[-1].get("dest") == param and events[-1].get("local") is not None:
            row = slots[events[-1]["local"]]
            row.copy_(row.maximum(_value(record, name)))
    return _sha256(slots)


def _halves(record: Record, param: str) -> list[Tensor]:
    in_file = param.replace("model.decoder.", f"model.layers.{draft_layer_of(record)}.")
    return [_value(record, in_file.replace(FUSED, half)) for half in HALVES]


def _value(record: Record, name: str) -> Tensor:
    spec = _specs(variant_of(record))[name]
    return torch.frombuffer(bytearray(tensor_bytes(spec)), dtype=_TORCH[spec.dtype]).reshape(
        spec.shape
    )


@cache
def _specs(variant: str) -> dict[str, Spec]:
    return {spec.name: spec for spec in golden_specs(variant)}


def _sha256(tensor: Tensor) -> str:
    raw = tensor.contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(raw.numpy().tobytes()).hexdigest()


_TORCH = {"F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn}
