"""A directory, or one file in it, to the contents of a checkpoint: which files count as what."""

import os
from pathlib import Path
from typing import Any

from loadscope.loader.bounded_read import is_link_or_file
from loadscope.loader.checkpoint_files import (
    Contents,
    read_config,
    read_indexed_shards,
    read_shards,
)
from loadscope.loader.faults import Faults, plain
from loadscope.loader.safetensors_header import Shard, Tensor
from loadscope.loader.weight_index import INDEX_NAME, INDEX_SUFFIX, WeightIndex, read_index

PICKLED = (".bin", ".pt", ".pth", ".ckpt")
CONVERT = "; convert pickled weights to .safetensors first: a pickle can run code and is never read"


class NotACheckpoint(ValueError):
    """The path holds nothing that could be meant as a checkpoint."""


def open_file(path: Path, faults: Faults) -> Contents:
    shards, tensors = read_shards(path.parent, [path.name], faults)
    config = _config_beside(path.parent, path.name, faults)
    return Contents(path.name, config, shards, tensors)


def open_directory(path: Path, faults: Faults) -> Contents:
    names = _names_in(path)
    shard_names = [name for name in names if name.endswith(".safetensors")]
    index_name = _index_name(names, faults)
    if not shard_names and index_name is None:
        _add_no_shards(path, names, faults)
    label = plain(path.resolve().name)
    config = _config_beside(path, label, faults)
    index = None if index_name is None else read_index(path / index_name, faults)
    shards, tensors = _read_directory(path, shard_names, index, faults)
    return Contents(label, config, shards, tensors)


def _read_directory(
    path: Path, names: list[str], index: WeightIndex | None, faults: Faults
) -> tuple[tuple[Shard, ...], dict[str, Tensor]]:
    if index is None:
        return read_shards(path, _without_consolidated(names, faults), faults)
    extra = sorted(set(names) - set(index.shards))
    return read_indexed_shards(path, index, extra, faults)


def _config_beside(directory: Path, subject: str, faults: Faults) -> dict[str, Any] | None:
    if is_link_or_file(directory / "config.json"):
        return read_config(directory, faults)
    faults.add("LS118", subject, "found no config.json beside the shards; expected one")
    return None


def _names_in(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        raise NotACheckpoint(f"{plain(path.name)}: cannot be listed: {error.strerror}") from None


def _index_name(names: list[str], faults: Faults) -> str | None:
    found = [name for name in names if name.endswith(INDEX_SUFFIX)]
    if INDEX_NAME in found or not found:
        return INDEX_NAME if found else None
    if len(found) > 1:
        text = f"found {len(found)} index files; expected one, or one named {INDEX_NAME}"
        faults.add("LS120", found[0], text)
        return None
    return found[0]


def _add_no_shards(path: Path, names: list[str], faults: Faults) -> None:
    advice = CONVERT if any(name.endswith(PICKLED) for name in names) else ""
    if "config.json" in names:
        text = f"found no *.safetensors file beside it; expected shards{advice}"
        faults.add("LS119", "config.json", text)
        return
    raise NotACheckpoint(
        f"{plain(path.resolve().name)}: found no *.safetensors file, no index and no config.json; "
        f"expected a checkpoint{advice}"
    )


def _without_consolidated(names: list[str], faults: Faults) -> list[str]:
    # some publishers put the same weights there a second time, under other names
    kept = [name for name in names if not name.startswith("consolidated")]
    if not kept:
        return names
    for name in sorted(set(names) - set(kept)):
        text = "found a second copy of the weights beside other shards; it is not used"
        faults.add("LS116", name, text)
    return kept
