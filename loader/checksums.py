"""Checksums of tensors, over the row-major bytes that a checkpoint has of each, by name.

`overall` is one digest for many: of the lines "<name> <hex>" with a line feed behind each, sorted
by name, in UTF-8, by the same algorithm. A sender needs three lines:

    h = xxhash.xxh3_128()
    for name in sorted(sums):
        h.update(f"{name} {sums[name]}\\n".encode())
"""

import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Protocol

import torch
import xxhash

from loadscope.loader.checkpoint import Checkpoint, Tensor
from loadscope.loader.read import ReadError

HEX_DIGITS = {"xxh3-128": 32, "sha256": 64}
ALGORITHMS = tuple(HEX_DIGITS)
# whole elements of every dtype
CHUNK_BYTES = 4 << 20
THREADS = 4
Gate = Callable[[int], None]
Scan = Callable[[str, Tensor, memoryview], None]


class Hasher(Protocol):
    def update(self, data: Any, /) -> None: ...
    def hexdigest(self) -> str: ...


def hasher(algorithm: str) -> Hasher:
    """A streaming hash; ValueError for an algorithm that is not one of ALGORITHMS."""
    if algorithm == "xxh3-128":
        return xxhash.xxh3_128()
    if algorithm == "sha256":
        return hashlib.sha256()
    raise ValueError(f"found algorithm {algorithm!r}; expected one of {', '.join(ALGORITHMS)}")


def checksum(data: bytes | memoryview, algorithm: str = "xxh3-128") -> str:
    found = hasher(algorithm)
    found.update(data)
    return found.hexdigest()


def tensor_checksum(tensor: torch.Tensor, algorithm: str = "xxh3-128") -> str:
    """Of the row-major contiguous bytes, whatever dtype, strides and device the tensor has."""
    found = hasher(algorithm)
    # a tensor without elements has no strides that could be viewed as bytes
    data = tensor.detach().contiguous().reshape(-1)
    data = data.view(torch.uint8) if data.numel() else data
    for start in range(0, len(data), CHUNK_BYTES):
        found.update(data[start : start + CHUNK_BYTES].cpu().numpy().data)
    return found.hexdigest()


def overall(checksums: Mapping[str, str], algorithm: str = "xxh3-128") -> str:
    """One digest for all of them: the formula at the top of this module."""
    found = hasher(algorithm)
    for name in sorted(checksums):
        found.update(f"{name} {checksums[name]}\n".encode())
    return found.hexdigest()


def file_checksums(
    checkpoint: Checkpoint,
    names: Iterable[str] | None = None,
    algorithm: str = "xxh3-128",
    gate: Gate | None = None,
    scan: Scan | None = None,
) -> Iterator[tuple[str, str]]:
    """(name, checksum) in the order of the files, of all tensors or of the named ones.

    `gate` is told the bytes of every read before it is hashed. `scan` gets the same bytes, whole
    elements of one tensor in one or more pieces, each valid during the call. Both are called by
    several threads, but never by two at once; what they raise passes through. Memory: a chunk per
    thread. Raises ValueError for an algorithm or a name that is not there, ReadError with the
    file's name for one that cannot be read or is too short.
    """
    hasher(algorithm)
    chosen = list(checkpoint.tensors if names is None else names)
    unknown = [name for name in chosen if name not in checkpoint.tensors]
    if unknown:
        raise ValueError(f"found no tensor {unknown[0]} in {checkpoint.label}; expected its names")
    rows = [(name, checkpoint.tensors[name]) for name in chosen]
    rows.sort(key=lambda row: (row[1].file, row[1].start))
    return _Hashing(checkpoint, algorithm, gate, scan).run(rows)


Row = tuple[str, Tensor]


def _jobs(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Small neighbours together: a thread's turn costs as much as hashing 100 KB."""
    job: list[Row] = []
    nbytes = 0
    for row in rows:
        job.append(row)
        nbytes += row[1].stop - row[1].start
        if nbytes >= CHUNK_BYTES:
            yield job
            job, nbytes = [], 0
    if job:
        yield job


class _Hashing:
    """Reads and hashes one checkpoint's tensors, some at a time, and gives them in order."""

    def __init__(
        self, checkpoint: Checkpoint, algorithm: str, gate: Gate | None, scan: Scan | None
    ) -> None:
        self._checkpoint, self._algorithm = checkpoint, algorithm
        self._gate, self._scan = gate, scan
        self._files: dict[int, int] = {}
        self._opening, self._calling = threading.Lock(), threading.Lock()
        self._stopped = threading.Event()
        self._buffers: SimpleQueue[memoryview] = SimpleQueue()

    def run(self, rows: Iterable[Row]) -> Iterator[tuple[str, str]]:
        if self._checkpoint.kind == "pack":
            raise ReadError(f"{self._checkpoint.label} holds headers only: no bytes to hash")
        for _ in range(THREADS):
            self._buffers.put(memoryview(bytearray(CHUNK_BYTES)))
        waiting: deque[Future[list[tuple[str, str]]]] = deque()
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="loadscope-hash")
        try:
            for job in _jobs(rows):
                waiting.append(pool.submit(self._hash, job))
                if len(waiting) > THREADS:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            self._stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
            for descriptor in self._files.values():
                os.close(descriptor)

    def _hash(self, job: list[Row]) -> list[tuple[str, str]]:
        buffer = self._buffers.get()
        try:
            return [(name, self._hash_one(name, tensor, buffer)) for name, tensor in job]
        finally:
            self._buffers.put(buffer)

    def _hash_one(self, name: str, tensor: Tensor, buffer: memoryview) -> str:
        found = hasher(self._algorithm)
        for start in range(tensor.start, tensor.stop, CHUNK_BYTES):
            if self._stopped.is_set():
                break
            data = buffer[: min(CHUNK_BYTES, tensor.stop - start)]
            self._read(tensor, data, start)
            with self._calling:
                if self._gate is not None:
                    self._gate(len(data))
                if self._scan is not None:
                    self._scan(name, tensor, data)
            found.update(data)
        return found.hexdigest()

    def _read(self, tensor: Tensor, data: memoryview, start: int) -> None:
        """Fill a buffer from a place in the tensor's file."""
        file, done = self._checkpoint.shards[tensor.file].name, 0
        while done < len(data):
            place = start + done
            try:
                got = os.preadv(self._file(tensor.file), [data[done:]], place)
            except OSError as error:
                told = f"{file}: bytes {place} to {tensor.stop}: {error.strerror}"
                raise ReadError(told) from error
            if got == 0:
                raise ReadError(f"{file} ends at byte {place}; expected bytes up to {tensor.stop}")
            done += got

    def _file(self, number: int) -> int:
        with self._opening:
            if number not in self._files:
                path = self._checkpoint.directory / self._checkpoint.shards[number].name
                self._files[number] = os.open(path, os.O_RDONLY)
            return self._files[number]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A sender's checksums by name, hex digits in lower case; `overall` if it gave one."""

    algorithm: str
    tensors: Mapping[str, str] = field(default_factory=dict)
    overall: str | None = None


FIELDS = ("algorithm", "tensors", "overall")


def parse_manifest(document: object) -> Manifest:
    """From {"algorithm", "tensors": {name: hex}, "overall"} or {name: hex}.

    An algorithm that is left out follows from the number of digits, `overall` may be left out.
    Raises ValueError that names the entry, what was found and what was expected.
    """
    if not isinstance(document, dict):
        raise ValueError(f"found {_kind(document)}; expected an object with checksums by name")
    is_long = "algorithm" in document or isinstance(document.get("tensors"), dict)
    if not is_long:
        return _parsed({"tensors": document})
    unknown = [name for name in document if name not in FIELDS]
    if unknown:
        raise ValueError(f"found a field {unknown[0]!r}; expected only {', '.join(FIELDS)}")
    return _parsed(document)


def _parsed(document: Mapping[str, Any]) -> Manifest:
    tensors = document.get("tensors")
    if not isinstance(tensors, dict):
        raise ValueError(f"tensors: found {_kind(tensors)}; expected an object {{name: checksum}}")
    algorithm = document.get("algorithm")
    if algorithm is None:
        algorithm = _guess(tensors)
    if algorithm not in ALGORITHMS:
        raise ValueError(f"found algorithm {algorithm!r}; expected one of {', '.join(ALGORITHMS)}")
    found = {name: _hex(name, text, algorithm) for name, text in tensors.items()}
    if (given := document.get("overall")) is None:
        return Manifest(algorithm, found)
    told, right = _hex("overall", given, algorithm), overall(found, algorithm)
    if told != right:
        raise ValueError(
            f'overall is {told}, but these checksums give {right}: the digest of the lines "name '
            'checksum", sorted by name, a line feed behind each'
        )
    return Manifest(algorithm, found, told)


def _guess(tensors: Mapping[str, Any]) -> str:
    """By the first checksum's length: the others must agree with it."""
    first = next(iter(tensors.values()), None)
    digits = len(first) if isinstance(first, str) else 0
    return next((name for name, length in HEX_DIGITS.items() if length == digits), ALGORITHMS[0])


def _hex(name: object, text: object, algorithm: str) -> str:
    digits = HEX_DIGITS[algorithm]
    if not isinstance(name, str):
        raise ValueError(f"found a name {name!r}; expected text")
    if not isinstance(text, str):
        raise ValueError(f"{name}: found {_kind(text)}; expected {digits} hex digits, {algorithm}")
    lower = text.lower()
    if len(text) != digits or not set(lower) <= set("0123456789abcdef"):
        shown = f"{text[:80]!r} ({len(text)} characters)"
        raise ValueError(f"{name}: found {shown}; expected {digits} hex digits, {algorithm}")
    return lower


KINDS: dict[type, str] = {
    dict: "an object", list: "a list", str: "text", int: "a number", float: "a number",
    bool: "a truth value", type(None): "nothing",
}  # fmt: skip


def _kind(value: object) -> str:
    return KINDS.get(type(value), f"a {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One name on which two sides differ; None: that side does not have it."""

    name: str
    expected: str | None
    got: str | None


def compare(manifest: Manifest, found: Mapping[str, str]) -> list[Mismatch]:
    """Names that differ or that only one side has, sorted; empty if all agree."""
    names = sorted(manifest.tensors.keys() | found.keys())
    rows = (Mismatch(name, manifest.tensors.get(name), found.get(name)) for name in names)
    return [row for row in rows if row.expected != row.got]
