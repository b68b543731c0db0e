"""The index file to who owns which name, and the verdict on every tensor that a shard holds."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from loadscope.loader.bounded_read import read_whole
from loadscope.loader.faults import Faults, plain, shown
from loadscope.loader.safetensors_header import Tensor
from loadscope.loader.strict_json import UnusableJson, kind_of, parse_object_and_duplicates

INDEX_NAME = "model.safetensors.index.json"
INDEX_SUFFIX = ".safetensors.index.json"
_INDEX_CAP = 256 << 20


@dataclass(frozen=True, slots=True)
class WeightIndex:
    file: str
    owners: dict[str, str]
    without_owner: frozenset[str]  # names whose entry names no usable file
    total_size: object

    @property
    def shards(self) -> list[str]:
        return sorted(set(self.owners.values()))


def read_index(path: Path, faults: Faults) -> WeightIndex | None:
    """The index; None after a fault that leaves nothing to decide with."""
    raw = read_whole(path, _INDEX_CAP, "LS120", faults)
    if raw is None:
        return None
    try:
        document, duplicates = parse_object_and_duplicates(raw)
    except UnusableJson as error:
        faults.add("LS120", path.name, f"found an index that is of no use: {error}")
        return None
    faults.add_duplicates(path.name, duplicates)
    metadata = document.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return _index(path.name, document.get("weight_map"), total, faults)


def _index(file: str, weight_map: object, total_size: object, faults: Faults) -> WeightIndex | None:
    if not isinstance(weight_map, dict):
        text = f"found a weight_map that is {kind_of(weight_map)}; expected an object"
        faults.add("LS120", file, text)
        return None
    owners = {name: shard for name, shard in weight_map.items() if is_plain_file_name(shard)}
    refused = {name: shard for name, shard in weight_map.items() if name not in owners}
    for name, shard in refused.items():
        text = f"entry {plain(name)}: found {shown(shard)}; expected a plain file name"
        faults.add("LS111", file, text, tensor=name)
    return WeightIndex(file, owners, frozenset(refused), total_size)


def is_plain_file_name(value: object) -> bool:
    """Whether the value can only name a file of the same directory, on any operating system."""
    return (
        isinstance(value, str)
        and value not in ("", ".", "..")
        and value.isprintable()
        and not any(character in value for character in "/\\:")
    )


def decide(
    index: WeightIndex,
    found: dict[str, dict[str, Tensor]],
    explained: set[str],
    faults: Faults,
) -> dict[str, Tensor]:
    """The tensors that lie where the index says; the others become faults, unless `explained`."""
    tensors: dict[str, Tensor] = {}
    for shard, held in found.items():
        owned = {name: held[name] for name in held if index.owners.get(name) == shard}
        tensors.update(owned)
        if len(owned) != len(held):
            _add_unowned(index, found, shard, held.keys() - owned.keys(), faults)
    if len(tensors) != len(index.owners):
        _add_unfound(index, found, tensors.keys() | explained, faults)
    return tensors


def _add_unowned(
    index: WeightIndex,
    found: dict[str, dict[str, Tensor]],
    shard: str,
    names: Iterable[str],
    faults: Faults,
) -> None:
    for name in sorted(names):
        owner = index.owners.get(name)
        if owner is None and name not in index.without_owner:
            text = f"tensor {plain(name)}: found in the shard; expected an entry in {index.file}"
            faults.add("LS116", shard, text, tensor=name)
        elif owner is not None and name in found.get(owner, {}):
            text = (
                f"tensor {plain(name)}: found here and in {owner}; {index.file} decides for {owner}"
            )
            faults.add("LS115", shard, text, tensor=name)


def _add_unfound(
    index: WeightIndex,
    found: dict[str, dict[str, Tensor]],
    settled: set[str],
    faults: Faults,
) -> None:
    holders = {name: shard for shard, held in found.items() for name in held}
    for name, shard in index.owners.items():
        if name in settled or shard not in found:
            continue  # an absent or unusable shard has its own fault
        other = f"found it in {holders[name]}" if name in holders else "found it in no shard"
        text = f"tensor {plain(name)}: {other}; expected it here by {index.file}"
        faults.add("LS102", shard, text, tensor=name)


def check_total_size(index: WeightIndex, tensors: dict[str, Tensor], faults: Faults) -> None:
    """A note: the published total of V3 itself is two bytes per element, not the payload."""
    payload = sum(tensor.stop - tensor.start for tensor in tensors.values())
    if index.total_size is not None and index.total_size != payload:
        text = f"found total_size {shown(index.total_size)}; expected {payload:,}, the payload"
        faults.add("LS117", index.file, text)
