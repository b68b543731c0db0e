"""The header of one safetensors file to its tensors; tensor data is never read.

8 bytes: header length n, little endian │ n bytes: JSON │ data, from byte 8 + n to the end
"""

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from loadscope.loader.bounded_read import add_unreadable, file_size
from loadscope.loader.faults import Faults
from loadscope.loader.header_check import check_layout, drop_suspects
from loadscope.loader.header_sizes import SizeTable
from loadscope.loader.strict_json import (
    UnusableJson,
    kind_of,
    parse_object,
    parse_object_and_duplicates,
)

HEADER_CAP = 100_000_000  # as in the safetensors library
_LENGTH_BYTES = 8
_INT = frozenset({int})  # JSON's true is a bool: equal to 1, but no size


class Tensor(NamedTuple):
    """Where one tensor lies: `file` indexes the shards, bytes count from the start of that file."""

    dtype: str
    shape: tuple[int, ...]
    file: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Shard:
    name: str
    size: int
    data_start: int


@dataclass(frozen=True, slots=True)
class HeaderReader:
    """Reads many headers; equal shapes become the same tuple."""

    faults: Faults
    sizes: SizeTable = field(default_factory=SizeTable)
    unusable: set[str] = field(default_factory=set)  # names of entries that became no tensor

    def read(self, path: Path, file: int) -> tuple[Shard, dict[str, Tensor]] | None:
        """The shard and its tensors; None if the header is of no use."""
        size = file_size(path, self.faults)
        raw = None if size is None else _read_header(path, size, self.faults)
        if size is None or raw is None:
            return None
        entries = self._parse(path.name, raw)
        if entries is None:
            return None
        shard = Shard(path.name, size, _LENGTH_BYTES + len(raw))
        return shard, self.take(entries, shard, file, data_bytes=size - shard.data_start)

    def _parse(self, name: str, raw: bytes) -> dict[str, Any] | None:
        try:
            entries = parse_object(raw)
            if raw.count(b'"') != _quotes_without_duplicates(entries) or b"\\" in raw:
                entries, duplicates = parse_object_and_duplicates(raw)
                self.faults.add_duplicates(name, duplicates)
        except UnusableJson as error:
            self.faults.add("LS108", name, f"found a header that is of no use: {error}")
            return None
        self._take_metadata(name, entries.pop("__metadata__", {}))
        return entries

    def _take_metadata(self, name: str, metadata: object) -> None:
        if not isinstance(metadata, dict):
            text = f"found __metadata__ that is {kind_of(metadata)}; expected an object"
            self.faults.add("LS108", name, text)
        elif not all(type(value) is str for value in metadata.values()):
            text = "found __metadata__ with other values than strings; expected strings"
            self.faults.add("LS108", name, text)

    def take(
        self, entries: dict[str, Any], shard: Shard, file: int, *, data_bytes: int | None
    ) -> dict[str, Tensor]:
        """The entries that are tensors; `data_bytes` is None where the file's size is unknown."""
        tensors: dict[str, Tensor] = {}
        suspects: list[str] = []
        end, in_order, base, sizes = 0, True, shard.data_start, self.sizes
        # the only loop over all tensors: 92,000 passes for V3
        for name, entry in entries.items():
            try:
                start, stop = entry["data_offsets"]
                shape = entry["shape"]
                dims, size = sizes[entry["dtype"], *shape]
                if type(shape) is not list or not (type(start) is type(stop) is int):
                    raise TypeError
                if not _INT.issuperset(map(type, shape)):
                    raise TypeError
            except (KeyError, TypeError, ValueError):
                suspects.append(name)
                continue
            if stop - start != size or start < 0:
                suspects.append(name)
            if start != end:
                in_order = False
            end = stop
            tensors[name] = Tensor(entry["dtype"], dims, file, base + start, base + stop)
        if suspects:
            drop_suspects(shard.name, entries, suspects, tensors, self.faults)
            self.unusable.update(name for name in suspects if name not in tensors)
        if suspects or not in_order or end != data_bytes:
            check_layout(shard.name, entries, data_bytes, self.faults)
        return tensors


def _read_header(path: Path, size: int, faults: Faults) -> bytes | None:
    try:
        with path.open("rb") as file:
            length = _header_length(path.name, file.read(_LENGTH_BYTES), size, faults)
            raw = None if length is None else file.read(length)
    except OSError as error:
        add_unreadable(path, error, faults)
        return None
    if raw is not None and len(raw) != length:
        faults.add("LS109", path.name, "found that the file shrank while it was read")
        return None
    return raw


def _header_length(name: str, prefix: bytes, size: int, faults: Faults) -> int | None:
    if len(prefix) < _LENGTH_BYTES:
        text = f"found {len(prefix)} bytes; expected at least the 8 bytes of the header's length"
        faults.add("LS109", name, text)
        return None
    length: int = struct.unpack("<Q", prefix)[0]
    limit = min(HEADER_CAP, size - _LENGTH_BYTES)
    if length <= limit:
        return length
    text = f"found a header length of {length:,} bytes; expected at most {limit:,}, "
    text += "the cap" if limit == HEADER_CAP else f"as the file has {size:,} bytes"
    faults.add("LS109", name, text)
    return None


def _quotes_without_duplicates(entries: dict[str, Any]) -> int:
    # Without a backslash every string has two quotes, so a key lost to a duplicate is two too many.
    # A tensor has five strings (name, three keys, dtype); exact unless an entry is faulty.
    metadata = entries.get("__metadata__")
    if not isinstance(metadata, dict):
        return 10 * len(entries) if metadata is None else 0
    return 10 * (len(entries) - 1) + 2 + 4 * len(metadata)
