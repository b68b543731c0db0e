"""A header pack, the headers of all shards in one JSON file, to the contents of a checkpoint."""

import gzip
import zlib
from pathlib import Path
from typing import Any

from loadscope.loader.bounded_read import add_unreadable, file_size
from loadscope.loader.checkpoint_files import Contents, union
from loadscope.loader.faults import Faults, plain, shown
from loadscope.loader.header_sizes import DTYPE_BITS, byte_count, is_shape
from loadscope.loader.safetensors_header import HeaderReader, Shard, Tensor
from loadscope.loader.strict_json import UnusableJson, kind_of, parse_object_and_duplicates
from loadscope.loader.weight_index import is_plain_file_name

PACK_SUFFIXES = (".headers.json.gz", ".headers.json")
_PACK_CAP = 512 << 20  # expanded; the largest known pack has 30 MB


def read_pack(path: Path, faults: Faults) -> Contents:
    """The pack's tensors; offsets count from 0 in each file, whose size is the payload."""
    raw = _read_expanded(path, faults)
    document = None if raw is None else _parse(path.name, raw, faults)
    if document is None:
        return Contents(path.name, None, (), {})
    files = document.get("files")
    if not isinstance(files, dict):
        text = f"found files that is {kind_of(files)}; expected an object of headers by file name"
        faults.add("LS108", path.name, text)
        files = {}
    shards, found = _take_files(path.name, files, faults)
    _check_total(path.name, document, sum(shard.size for shard in shards), faults)
    label = document.get("checkpoint")
    return Contents(
        label=plain(label) if isinstance(label, str) else path.name,
        config=_config(path.name, document, faults),
        shards=tuple(shards),
        tensors=union(found, faults),
    )


def _read_expanded(path: Path, faults: Faults) -> bytes | None:
    if file_size(path, faults) is None:
        return None
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            raw: bytes = file.read(_PACK_CAP + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        faults.add("LS108", path.name, "found gzip data that is broken or cut short")
        return None
    except OSError as error:
        add_unreadable(path, error, faults)
        return None
    if len(raw) > _PACK_CAP:
        faults.add("LS108", path.name, f"found more than {_PACK_CAP:,} bytes when expanded")
        return None
    return raw


def _parse(name: str, raw: bytes, faults: Faults) -> dict[str, Any] | None:
    try:
        document, duplicates = parse_object_and_duplicates(raw)
    except UnusableJson as error:
        faults.add("LS108", name, f"found a header pack that is of no use: {error}")
        return None
    faults.add_duplicates(name, duplicates)
    return document


def _take_files(
    pack: str, files: dict[str, Any], faults: Faults
) -> tuple[list[Shard], dict[str, dict[str, Tensor]]]:
    reader, shards, found = HeaderReader(faults), list[Shard](), dict[str, dict[str, Tensor]]()
    for name, entries in files.items():
        if not is_plain_file_name(name):
            text = f"found {shown(name)}; expected a plain file name"
            faults.add("LS111", pack, text)
        elif not isinstance(entries, dict):
            faults.add("LS108", name, f"found {kind_of(entries)}; expected a header, an object")
        else:
            entries.pop("__metadata__", None)
            _fill_offsets(entries)
            held = reader.take(entries, Shard(name, 0, 0), len(shards), data_bytes=None)
            shards.append(Shard(name, max((t.stop for t in held.values()), default=0), 0))
            found[name] = held
    return shards, found


def _fill_offsets(entries: dict[str, Any]) -> None:
    """Offsets may be left out of a whole file: its tensors then stand in data order."""
    values = entries.values()
    if any(not isinstance(entry, dict) or "data_offsets" in entry for entry in values):
        return
    end = 0
    for entry in values:
        begin, end = end, end + _size_of(entry)
        entry["data_offsets"] = [begin, end]


def _size_of(entry: dict[str, Any]) -> int:
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS or not is_shape(shape):
        return 0  # the reader reports it
    return byte_count(dtype, tuple(entry["shape"])) or 0


def _check_total(pack: str, document: dict[str, Any], payload: int, faults: Faults) -> None:
    metadata = document.get("index_metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if total is not None and total != payload:
        text = f"found total_size {shown(total)}; expected {payload:,}, the payload"
        faults.add("LS117", pack, text)


def _config(pack: str, document: dict[str, Any], faults: Faults) -> dict[str, Any] | None:
    config, quantisation = document.get("config"), document.get("hf_quant_config")
    if isinstance(config, dict) and isinstance(quantisation, dict):
        return {**config, "_hf_quant_config": quantisation}
    if isinstance(config, dict):
        return config
    text = f"found config that is {kind_of(config)}; expected the object of config.json"
    faults.add("LS118", pack, text)
    return None
