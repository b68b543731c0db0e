"""Weights held in memory and handed over in pieces, loads to compare with, stores by bytes."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Options, Plan
from loadscope.loader.topology import Layout
from support.golden_checkpoint import write_golden_checkpoint
from support.loaded import load_rank, plan_of

EP2 = Layout(tp_size=2, ep_size=2)
ATTN = "model.layers.1.self_attn."
EXPERTS = "model.layers.1.mlp.experts."
KV_B = ATTN + "kv_b_proj."
O_PROJ = ATTN + "o_proj.weight"
WK = ATTN + "indexer.wk."
Weights = dict[str, Tensor]


def weights_of(folder: Path) -> Weights:
    """Every tensor of a checkpoint by name, file by file."""
    found: Weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        found.update(load_file(file))
    return found


def changed(weights: Mapping[str, Tensor]) -> Weights:
    """Other values of the same kind: elements moved on by one, single numbers doubled."""
    return {
        name: tensor * 2 if tensor.numel() == 1 else _rolled(tensor)
        for name, tensor in weights.items()
    }


def _rolled(tensor: Tensor) -> Tensor:
    raw = tensor.flatten().view(torch.uint8)
    return raw.roll(tensor.element_size()).view(tensor.dtype).reshape(tensor.shape)


def write_weights(like: Path, folder: Path, weights: Mapping[str, Tensor]) -> Path:
    """A checkpoint with the config of another one and these tensors in one shard."""
    folder.mkdir(parents=True)
    shutil.copy(like / "config.json", folder)
    shard = "model.safetensors"
    save_file(dict(weights), folder / shard)
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, shard)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def pieces(names: Sequence[str], seed: int, count: int) -> list[list[str]]:
    """The names in a random order, cut into `count` pieces; some may be empty."""
    random, order = Random(seed), list(names)
    random.shuffle(order)
    cuts = sorted(random.randint(0, len(order)) for _ in range(count - 1))
    return [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True)]


def through_one_buffer(
    weights: Mapping[str, Tensor], names: Sequence[str]
) -> Iterator[tuple[str, Tensor]]:
    """One memory for all tensors, spoiled as soon as the next one is asked for."""
    longest = max((w.numel() * w.element_size() for w in weights.values()), default=0)
    buffer = torch.empty(longest, dtype=torch.uint8)
    for name in names:
        tensor = weights[name]
        used = buffer[: tensor.numel() * tensor.element_size()]
        used.copy_(tensor.contiguous().reshape(-1).view(torch.uint8))
        yield name, used.view(tensor.dtype).reshape(tensor.shape)
        buffer.fill_(0x5A)


def contents(store: ParameterStore) -> dict[str, bytes]:
    """Bytes of every parameter and derived tensor."""
    tensors = {**store.parameters, **store.derived}
    return {name: _bytes(tensor) for name, tensor in tensors.items()}


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def differing(store: ParameterStore, other: ParameterStore) -> set[str]:
    """Names whose bytes are unequal, or that only one of the two has."""
    one, two = contents(store), contents(other)
    return {name for name in one.keys() | two.keys() if one.get(name) != two.get(name)}


def addresses(store: ParameterStore) -> dict[str, int]:
    tensors = {**store.parameters, **store.derived}
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


def some(weights: Mapping[str, Tensor], *names: str) -> list[tuple[str, Tensor]]:
    return [(name, weights[name]) for name in names]


class Files:
    """Golden checkpoints and the same with other values, written and loaded once each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = cache(self._folder)
        self.weights = cache(self._weights)
        self.plan = cache(self._plan)
        self.loaded = cache(self._loaded)

    def _folder(self, variant: str, version: int = 1) -> Path:
        if version == 1:
            return write_golden_checkpoint(variant, self.root / variant)
        folder = self.root / f"{variant}, changed"
        return write_weights(self.folder(variant), folder, self.weights(variant, 2))

    def _weights(self, variant: str, version: int = 1) -> Weights:
        own = weights_of(self.folder(variant))
        return own if version == 1 else changed(own)

    def _plan(self, variant: str, layout: Layout = EP2, options: Options | None = None) -> Plan:
        return plan_of(self.folder(variant), layout, options)

    def _loaded(
        self,
        variant: str,
        layout: Layout = EP2,
        rank: int = 1,
        options: Options | None = None,
        version: int = 1,
    ) -> ParameterStore:
        """From disk: what an update is compared with."""
        plan = plan_of(self.folder(variant, version), layout, options)
        return load_rank(plan, self.folder(variant, version), rank)

    def empty(
        self, variant: str, layout: Layout = EP2, rank: int = 1, options: Options | None = None
    ) -> ParameterStore:
        return ParameterStore(self.plan(variant, layout, options), rank)

    def ready(
        self, variant: str, layout: Layout = EP2, rank: int = 1, options: Options | None = None
    ) -> ParameterStore:
        """A loaded store of one's own."""
        plan = self.plan(variant, layout, options)
        return load_rank(plan, self.folder(variant), rank)
