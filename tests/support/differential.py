"""Loads a small checkpoint on every rank and compares it, bit for bit, with its files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loadscope.loader.execute import open_reader
from loadscope.loader.rank_load import ReaderFactory
from support.deepseek_tensors import Spec, checkpoint_specs
from support.golden_checkpoint import tensor_bytes
from support.loaded import load_ranks
from support.names import is_draft
from support.random_models import Case
from support.safetensors_files import write_checkpoint
from support.stitch import Group, bits, stitched

_TORCH = {"BF16": torch.bfloat16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn}


def write_case(case: Case, folder: Path) -> Path:
    """Three shards, tensors dealt out one by one, so that pairs are split over files."""
    specs = checkpoint_specs(case.config)
    shards = {f"model-{n}.safetensors": specs[n::3] for n in range(3)}
    return write_checkpoint(folder, case.config, shards, tensor_bytes)


def load_case(case: Case, folder: Path, make_reader: ReaderFactory = open_reader) -> Group:
    """Every rank's parameters after loading what `write_case` wrote."""
    ranks = load_ranks(write_case(case, folder), case.layout, make_reader)
    return Group(ranks, case.config, tp_size=case.layout.tp_size, ep_size=case.layout.ep_size)


def differing(group: Group) -> list[str]:
    """Names of checkpoint tensors that the ranks together do not hold as the files do."""
    return [
        name
        for name, expected in _expected(dict(group.config))
        if not torch.equal(stitched(group, name), bits(expected))
    ] + _differing_derived(group)


def _expected(config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Target tensors as they should be held; the fused indexer key as its dequantised values."""
    specs = {spec.name: spec for spec in checkpoint_specs(config)}
    for name, spec in specs.items():
        if is_draft(name, config["num_hidden_layers"]):
            continue
        if "indexer.wk." not in name:
            yield name, value_of(spec)
        elif name.endswith(".weight"):
            yield name, _dequantised(specs, name)


def _differing_derived(group: Group) -> list[str]:
    """w_kc and w_vc of all ranks, one head after another, against kv_b_proj in the files."""
    specs = {spec.name: spec for spec in checkpoint_specs(dict(group.config))}
    wrong = []
    for layer in range(group.config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}.self_attn."
        heads = _dequantised(specs, f"{prefix}kv_b_proj.weight").unflatten(
            0, (group.config["num_attention_heads"], -1)
        )
        nope = group.config["qk_nope_head_dim"]
        pieces = {"w_kc": heads[:, :nope], "w_vc": heads[:, nope:].transpose(1, 2)}
        wrong += [prefix + n for n, value in pieces.items() if not _same(group, prefix + n, value)]
    return wrong


def _same(group: Group, name: str, expected: Tensor) -> bool:
    found = torch.cat([bits(rank[name]) for rank in group.holders(name)])
    return torch.equal(found, bits(expected))


def _dequantised(specs: dict[str, Spec], name: str) -> Tensor:
    """code x scale of its block of 128 x 128, in float32, rounded once; bf16 as it is."""
    weight = value_of(specs[name])
    if f"{name}_scale_inv" not in specs:
        return weight
    scale = value_of(specs[f"{name}_scale_inv"])
    grown = scale.repeat_interleave(128, dim=0).repeat_interleave(128, dim=1)
    rows, columns = weight.shape
    return (weight.float() * grown[:rows, :columns]).to(torch.bfloat16)


def value_of(spec: Spec) -> Tensor:
    return torch.frombuffer(bytearray(tensor_bytes(spec)), dtype=_TORCH[spec.dtype]).view(
        spec.shape
    )
