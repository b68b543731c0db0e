"""Files to the parts of a checkpoint: config.json, and shards with or without an index."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadscope.loader.bounded_read import is_link_or_file, read_whole
from loadscope.loader.faults import Faults, plain
from loadscope.loader.safetensors_header import HeaderReader, Shard, Tensor
from loadscope.loader.strict_json import UnusableJson, parse_object_and_duplicates
from loadscope.loader.weight_index import WeightIndex, check_total_size, decide

_CONFIG_CAP = 16 << 20


@dataclass(frozen=True, slots=True)
class Contents:
    label: str
    config: dict[str, Any] | None
    shards: tuple[Shard, ...]
    tensors: dict[str, Tensor]


def read_config(directory: Path, faults: Faults) -> dict[str, Any] | None:
    """config.json, with hf_quant_config.json beside it under `_hf_quant_config`."""
    config = _read_object(directory / "config.json", faults)
    quantisation = directory / "hf_quant_config.json"
    if config is not None and is_link_or_file(quantisation):
        config["_hf_quant_config"] = _read_object(quantisation, faults)
    return config


def _read_object(path: Path, faults: Faults) -> dict[str, Any] | None:
    raw = read_whole(path, _CONFIG_CAP, "LS201", faults)
    if raw is None:
        return None
    try:
        document, duplicates = parse_object_and_duplicates(raw)
    except UnusableJson as error:
        faults.add("LS201", path.name, f"found JSON that is of no use: {error}")
        return None
    faults.add_duplicates(path.name, duplicates)
    return document


def read_shards(
    directory: Path, names: Iterable[str], faults: Faults
) -> tuple[tuple[Shard, ...], dict[str, Tensor]]:
    """All tensors of these shards, with no index to decide."""
    reader = HeaderReader(faults)
    shards, found = _read_each(directory, names, reader)
    return tuple(shards), union(found, faults)


def _read_each(
    directory: Path, names: Iterable[str], reader: HeaderReader
) -> tuple[list[Shard], dict[str, dict[str, Tensor]]]:
    shards: list[Shard] = []
    found: dict[str, dict[str, Tensor]] = {}
    for name in names:
        read = reader.read(directory / name, len(shards))
        if read is not None:
            shards.append(read[0])
            found[name] = read[1]
    return shards, found


def union(found: dict[str, dict[str, Tensor]], faults: Faults) -> dict[str, Tensor]:
    """Every name once; the first shard keeps a name that a later one has too."""
    tensors: dict[str, Tensor] = {}
    for shard, held in found.items():
        if not tensors.keys().isdisjoint(held):
            _add_doubles(shard, held.keys() & tensors.keys(), faults)
            held = {name: held[name] for name in held if name not in tensors}
        tensors.update(held)
    return tensors


def _add_doubles(shard: str, names: Iterable[str], faults: Faults) -> None:
    for name in sorted(names):
        text = f"tensor {plain(name)}: found in an earlier shard too; expected it once"
        faults.add("LS114", shard, text, tensor=name)


def read_indexed_shards(
    directory: Path, index: WeightIndex, extra: Iterable[str], faults: Faults
) -> tuple[tuple[Shard, ...], dict[str, Tensor]]:
    """The tensors that the index assigns; files that it does not name are read only to say so."""
    present = [name for name in index.shards if is_link_or_file(directory / name)]
    _add_absent(index, set(present), faults)
    reader = HeaderReader(faults)
    shards, found = _read_each(directory, present, reader)
    found |= _read_extra(directory, extra, faults)
    tensors = decide(index, found, reader.unusable, faults)
    if not faults.has_errors():
        check_total_size(index, tensors, faults)
    return tuple(shards), tensors


def _add_absent(index: WeightIndex, present: set[str], faults: Faults) -> None:
    text = f"found no such file; expected it by {index.file}"
    for name, shard in index.owners.items():
        if shard not in present:
            faults.add("LS101", shard, text, tensor=name)


def _read_extra(
    directory: Path, names: Iterable[str], faults: Faults
) -> dict[str, dict[str, Tensor]]:
    # what is wrong with a file that nobody uses is no error
    shards, found = _read_each(directory, names, HeaderReader(Faults()))
    for name in sorted(set(names) - {shard.name for shard in shards}):
        text = "found a file that is in no index entry and no usable shard; expected no such file"
        faults.add("LS116", name, text)
    return found
