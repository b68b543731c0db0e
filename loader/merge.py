"""Weights that came by themselves, as a checkpoint: alone, or laid over the loaded one."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadscope.loader.checkpoint import Checkpoint
from loadscope.loader.checkpoint_files import read_shards
from loadscope.loader.faults import Faults, plain
from loadscope.loader.findings import sort_by_level

Covers = Callable[[str], Iterable[str]]


def open_spool(folder: Path, names: Sequence[str], config: Mapping[str, Any] | None) -> Checkpoint:
    """Headers of the given .safetensors files of a folder, in this order, under a config that is
    handed in. What is wrong with a file is in `findings`.
    """
    began, faults = time.perf_counter(), Faults()
    shards, tensors = read_shards(folder, names, faults)
    return Checkpoint(
        path=folder,
        kind="directory",
        label=plain(folder.name),
        config=None if config is None else dict(config),
        shards=shards,
        tensors=tensors,
        findings=sort_by_level(list(faults.findings())),
        seconds=time.perf_counter() - began,
    )


def merged(base: Checkpoint, arrived: Checkpoint, covers: Covers) -> Checkpoint:
    """The loaded checkpoint without what `covers` says the arrived names replace, and those names.

    Shards are those of the base that still have a tensor, then the arrived ones; only these lie in
    the merged `directory`. What is replaced in part stays: the plan's proof tells.
    """
    gone = {name for own in arrived.tensors for name in covers(own)}
    left = {name: tensor for name, tensor in base.tensors.items() if name not in gone}
    # one partial update after another must not leave ever more shards behind
    files = sorted({tensor.file for tensor in left.values()})
    place = {file: number for number, file in enumerate(files)}
    tensors = {n: tensor._replace(file=place[tensor.file]) for n, tensor in left.items()}
    tensors |= {n: t._replace(file=t.file + len(files)) for n, t in arrived.tensors.items()}
    shards = (*(base.shards[file] for file in files), *arrived.shards)
    return replace(arrived, config=base.config, shards=shards, tensors=tensors)


def arrived_files(merged: Checkpoint, arrived: Checkpoint) -> frozenset[int]:
    """Indices of the arrived shards of a merged checkpoint: the last ones."""
    count = len(merged.shards)
    return frozenset(range(count - len(arrived.shards), count))
