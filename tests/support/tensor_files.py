"""Writes tensors as a checkpoint directory, in shards dealt out one by one."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from support.linear_specs import Spec
from support.safetensors_files import write_checkpoint

TAGS = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.int32: "I32",
}
WIDTHS = {"F8_E8M0": 1}


class FileSpec(Spec):
    """A spec of any dtype that files may have."""

    @property
    def num_bytes(self) -> int:
        return super().num_bytes if self.dtype not in WIDTHS else _elements(self.shape)


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def write_tensors(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """config.json, two shards and an index; pairs are split over the shards by chance."""
    specs = [FileSpec(name, TAGS[t.dtype], tuple(t.shape)) for name, t in tensors.items()]
    shards: dict[str, list[Spec]] = {"model-1.safetensors": [], "model-2.safetensors": []}
    for spec in specs:
        number = 1 + hashlib.sha256(spec.name.encode()).digest()[0] % 2
        shards[f"model-{number}.safetensors"].append(spec)
    shards = {name: held for name, held in shards.items() if held}
    return write_checkpoint(folder, config, shards, lambda spec: raw_bytes(tensors[spec.name]))


def raw_bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
