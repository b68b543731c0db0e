"""Weights held in memory and handed over in pieces, loads to compare with, stores by bytes."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.execute import open_reader, run_load
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Options, Plan
from loadscope.loader.rank_load import ReaderFactory
from loadscope.loader.read import Loaded, Reader
from loadscope.loader.stamps import Stamp
from loadscope.loader.topology import Layout
from loadscope.loader.writing import WHOLE, Writing, written_elements
from support.golden_checkpoint import VARIANTS, write_golden_checkpoint
from support.loaded import POISON, load_rank, plan_of
from support.readers import ChangingReader

EP2 = Layout(tp_size=2, ep_size=2)
ATTN = "model.layers.1.self_attn."
EXPERTS = "model.layers.1.mlp.experts."
KV_B = ATTN + "kv_b_proj."
O_PROJ = ATTN + "o_proj.weight"
WK = ATTN + "indexer.wk."
SPOILT = 0x5A
# of the golden ones: not the refused one, not the one without a target
LOADED = [name for name in VARIANTS if name not in ("v3-fp8-block-oddq", "v3-fp8-block-mtponly")]
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
    return write_shards(like, folder, {"model.safetensors": weights})


def write_shards(like: Path, folder: Path, shards: Mapping[str, Mapping[str, Tensor]]) -> Path:
    folder.mkdir(parents=True)
    shutil.copy(like / "config.json", folder)
    owners: dict[str, str] = {}
    for shard, weights in shards.items():
        save_file(dict(weights), folder / shard)
        owners |= dict.fromkeys(weights, shard)
    index = {"metadata": {}, "weight_map": owners}
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
    yield from OneBuffer(weights).lend(names)


class OneBuffer:
    """Lends every tensor as a view of the same memory, for several calls."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = weights
        self._bytes = {
            name: tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
            for name, tensor in weights.items()
        }
        longest = max((len(raw) for raw in self._bytes.values()), default=0)
        self._memory = np.empty(longest, dtype=np.uint8)
        self._tensor = torch.from_numpy(self._memory)

    def lend(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        for name in names:
            tensor, raw = self._weights[name], self._bytes[name]
            self._memory[: len(raw)] = raw
            yield name, self._tensor[: len(raw)].view(tensor.dtype).view(tensor.shape)
            self._memory.fill(SPOILT)


def contents(store: ParameterStore) -> dict[str, bytes]:
    """Bytes of every parameter and derived tensor."""
    tensors = {**store.parameters, **store.derived}
    return {name: _bytes(tensor) for name, tensor in tensors.items()}


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).cpu().numpy())


def differing(store: ParameterStore, other: ParameterStore) -> set[str]:
    """Names whose bytes are unequal, or that only one of the two has."""
    one, two = contents(store), contents(other)
    return {name for name in one.keys() | two.keys() if one.get(name) != two.get(name)}


def addresses(store: ParameterStore) -> dict[str, int]:
    tensors = {**store.parameters, **store.derived}
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


class Whole(NamedTuple):
    """Everything that must be as it was when an update did not count."""

    state: str
    version: str | None
    contents: dict[str, bytes]
    addresses: dict[str, int]
    written: dict[str, Stamp]
    inputs: dict[str, dict[str, Stamp]]
    scalars: dict[str, float]
    flags: dict[str, bool]
    touched: tuple[str, ...]
    plan: str


def whole(store: ParameterStore) -> Whole:
    stamps = store.stamps.copy()
    return Whole(
        store.state,
        store.version,
        contents(store),
        addresses(store),
        stamps.written,
        stamps.inputs,
        dict(store.scalars),
        dict(store.flags),
        tuple(store.touched),
        store.plan.digest,
    )


def load_into(
    store: ParameterStore,
    plan: Plan,
    folder: Path,
    writing: Writing = WHOLE,
    make_reader: ReaderFactory = open_reader,
) -> list[dict[str, Any]]:
    """Read files into a store; the events of its end."""
    ends: list[dict[str, Any]] = []

    def emit(kind: str, rank: int | None = None, **facts: Any) -> None:
        if kind in ("failed", "load_finished"):
            ends.append({"kind": kind, **facts})

    stores = {store.rank: store}
    run_load(plan, open_checkpoint(folder), stores, emit, make_reader=make_reader, writing=writing)
    return ends


def some(weights: Mapping[str, Tensor], *names: str) -> list[tuple[str, Tensor]]:
    return [(name, weights[name]) for name in names]


class Stopped(RuntimeError):
    """What a reader raises that stops on purpose."""


def stopping(after: int) -> ReaderFactory:
    """A reader that brings so many chunks and then fails."""

    def open_it(folder: Path, names: list[str], device: torch.device) -> Reader:
        left = [after]

        def count_down(loaded: Loaded) -> Loaded:
            left[0] -= 1
            if left[0] < 0:
                raise Stopped("the disk is gone")
            return loaded

        return ChangingReader(open_reader(folder, names, device), count_down, lambda _loaded: None)

    return open_it


class Part(NamedTuple):
    """Some new tensors in a file of their own, beside the old ones of which they take the place."""

    folder: Path
    plan: Plan
    files: frozenset[int]

    def writing(self, version: str, *, undo: bool = False) -> Writing:
        return Writing(version, undo, self.files)

    def touched(self, rank: int) -> set[str]:
        """Parameters that the new tensors fill, if only in part."""
        steps = Writing(files=self.files).steps(self.plan, rank)
        return set(written_elements(self.plan, steps))


class Files:
    """Golden checkpoints and the same with other values, written and loaded once each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._numbers = count()
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

    def _plan(
        self,
        variant: str,
        layout: Layout = EP2,
        options: Options | None = None,
        version: int = 1,
    ) -> Plan:
        return plan_of(self.folder(variant, version), layout, options)

    def _loaded(
        self,
        variant: str,
        layout: Layout = EP2,
        rank: int = 1,
        options: Options | None = None,
        version: int = 1,
    ) -> ParameterStore:
        """From disk: what an update is compared with."""
        plan = self.plan(variant, layout, options, version)
        return load_rank(plan, self.folder(variant, version), rank)

    def load(
        self,
        store: ParameterStore,
        variant: str,
        version: int,
        writing: Writing,
        make_reader: ReaderFactory = open_reader,
    ) -> list[dict[str, Any]]:
        """Read a version's files into a store; the events of its end."""
        plan = self.plan(variant, store.plan.layout, version=version)
        return load_into(store, plan, self.folder(variant, version), writing, make_reader)

    def part(
        self, variant: str, *names: str, layout: Layout = EP2, options: Options | None = None
    ) -> Part:
        """These tensors of version 2, all others of version 1."""
        old, new = self.weights(variant), self.weights(variant, 2)
        folder = self.root / f"part {next(self._numbers)}"
        shards = {
            "arrived.safetensors": {name: new[name] for name in names},
            "before.safetensors": {n: t for n, t in old.items() if n not in names},
        }
        write_shards(self.folder(variant), folder, shards)
        plan = plan_of(folder, layout, options)
        arrived = [shard.name for shard in plan.shards].index("arrived.safetensors")
        return Part(folder, plan, frozenset({arrived}))

    def empty(
        self, variant: str, layout: Layout = EP2, rank: int = 1, options: Options | None = None
    ) -> ParameterStore:
        return ParameterStore(self.plan(variant, layout, options), rank)

    def ready(
        self,
        variant: str,
        layout: Layout = EP2,
        rank: int = 1,
        options: Options | None = None,
        device: str = "cpu",
    ) -> ParameterStore:
        """A loaded store of one's own, of version 1."""
        plan = self.plan(variant, layout, options)
        store = ParameterStore(plan, rank, device)
        store.fill_pattern(POISON)
        store.reset_initial()
        ends = load_into(store, plan, self.folder(variant), Writing(version="1"))
        assert store.state == "ready", ends
        return store
