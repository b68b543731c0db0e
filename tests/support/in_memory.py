"""Checkpoint objects without files, and copies of them in which one tensor is changed."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadscope.loader.checkpoint import Checkpoint, Shard, Tensor
from support.deepseek_tensors import ITEM_BYTES, Spec, checkpoint_specs
from support.safetensors_files import header_entries

SHARD = "model.safetensors"
_WIDTHS = {**ITEM_BYTES, "I8": 1, "U8": 1, "I32": 4}


def in_memory(config: Mapping[str, Any], specs: list[Spec] | None = None) -> Checkpoint:
    """A checkpoint of one shard whose headers are these specs, by default the config's own."""
    specs = checkpoint_specs(dict(config)) if specs is None else specs
    start = 8 + len(json.dumps(header_entries(specs)))
    tensors, end = {}, start
    for spec in specs:
        begin, end = end, end + spec.num_bytes
        tensors[spec.name] = Tensor(spec.dtype, spec.shape, 0, begin, end)
    return Checkpoint(
        path=Path("/nowhere"),
        kind="directory",
        label="in memory",
        config=dict(config),
        shards=(Shard(SHARD, end, start),),
        tensors=tensors,
        findings=(),
        seconds=0.0,
    )


def without(checkpoint: Checkpoint, name: str) -> Checkpoint:
    tensors = dict(checkpoint.tensors)
    del tensors[name]
    return replace(checkpoint, tensors=tensors)


def renamed(checkpoint: Checkpoint, name: str, new_name: str) -> Checkpoint:
    tensors = {new_name if n == name else n: t for n, t in checkpoint.tensors.items()}
    return replace(checkpoint, tensors=tensors)


def with_copy(checkpoint: Checkpoint, name: str, new_name: str) -> Checkpoint:
    """The same tensor a second time under another name."""
    return _with(checkpoint, new_name, checkpoint.tensors[name])


def with_dtype(checkpoint: Checkpoint, name: str, dtype: str) -> Checkpoint:
    old = checkpoint.tensors[name]
    return _with(checkpoint, name, _resized(old._replace(dtype=dtype)))


def with_shape(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Checkpoint:
    old = checkpoint.tensors[name]
    return _with(checkpoint, name, _resized(old._replace(shape=shape)))


def _resized(tensor: Tensor) -> Tensor:
    num_bytes = _WIDTHS[tensor.dtype]
    for size in tensor.shape:
        num_bytes *= size
    return tensor._replace(stop=tensor.start + num_bytes)


def _with(checkpoint: Checkpoint, name: str, tensor: Tensor) -> Checkpoint:
    return replace(checkpoint, tensors={**checkpoint.tensors, name: tensor})
