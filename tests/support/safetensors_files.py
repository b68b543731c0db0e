"""Writes checkpoint directories without the safetensors library or anything under test."""

import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.deepseek_tensors import Spec

Fill = Callable[[Spec], bytes]
INDEX = "model.safetensors.index.json"


def write_checkpoint(
    folder: Path, config: Mapping[str, Any], shards: Mapping[str, Sequence[Spec]], fill: Fill
) -> Path:
    """config.json, every shard with its bytes, and the index; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    for name, specs in shards.items():
        _write_shard(folder / name, specs, fill)
    (folder / INDEX).write_text(json.dumps(_index(shards), indent=1))
    return folder


def header_bytes(entries: Mapping[str, Any]) -> bytes:
    """Length prefix and JSON, padded with spaces to a multiple of eight."""
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def expand_pack(pack: Mapping[str, Any], folder: Path) -> Path:
    """A header pack as a directory of real size: true headers, the data a hole in the file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, entries in pack["files"].items():
        head = header_bytes({"__metadata__": {"format": "pt"}, **entries})
        (folder / name).write_bytes(head)
        end = max(entry["data_offsets"][1] for entry in entries.values())
        os.truncate(folder / name, len(head) + end)
    weight_map = {tensor: name for name, entries in pack["files"].items() for tensor in entries}
    index = {"metadata": pack["index_metadata"], "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(pack["config"]))
    return folder


def header_entries(specs: Sequence[Spec]) -> dict[str, dict[str, Any]]:
    """The header of one shard whose tensors stand one behind the other."""
    entries, end = {}, 0
    for spec in specs:
        begin, end = end, end + spec.num_bytes
        entries[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [begin, end],
        }
    return entries


def _write_shard(path: Path, specs: Sequence[Spec], fill: Fill) -> None:
    with path.open("wb") as file:
        file.write(header_bytes(header_entries(specs)))
        for spec in specs:
            file.write(fill(spec))


def _index(shards: Mapping[str, Sequence[Spec]]) -> dict[str, Any]:
    names = {spec.name: shard for shard, specs in shards.items() for spec in specs}
    total = sum(spec.num_bytes for specs in shards.values() for spec in specs)
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
