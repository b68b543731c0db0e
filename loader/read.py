"""Byte ranges of checkpoint files to buffers: threads read ahead into a ring of fixed size."""

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from loadscope.loader.steps import CHUNK_BYTES, Chunk

READ_THREADS = 4
RING_BUFFERS = 8
# a tensor's place in the buffer has the alignment it has in the file
ALIGN = 64


class ReadError(Exception):
    """A file that could not be read as planned; the message names file and byte range."""


class Loaded(NamedTuple):
    """A chunk's bytes. `data` is valid until the next one is asked for: its buffer is reused."""

    chunk: Chunk
    data: torch.Tensor
    seconds: float


class Reader(Protocol):
    """Turns chunks into bytes, in order."""

    def read(self, chunks: Iterable[Chunk]) -> Iterator[Loaded]: ...

    def close(self) -> None: ...


class ThreadedReader:
    """Reads ahead with threads; memory is the ring's, whatever the checkpoint's size."""

    def __init__(
        self, folder: Path, names: list[str], *, threads: int = READ_THREADS, pinned: bool = False
    ) -> None:
        self._folder = folder
        self._names = names
        self._files: dict[int, int] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="loadscope-read")
        size = CHUNK_BYTES + ALIGN
        self._free = [
            torch.empty(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(RING_BUFFERS)
        ]

    def read(self, chunks: Iterable[Chunk]) -> Iterator[Loaded]:
        waiting: deque[tuple[Chunk, torch.Tensor, Future[float]]] = deque()
        source = iter(chunks)
        try:
            self._submit(source, waiting)
            while waiting:
                chunk, buffer, future = waiting.popleft()
                seconds = future.result()
                offset = chunk.start % ALIGN
                yield Loaded(chunk, buffer[offset : offset + chunk.stop - chunk.start], seconds)
                self._free.append(buffer)
                self._submit(source, waiting)
        finally:
            for _chunk, _buffer, future in waiting:
                future.cancel()

    def _submit(
        self, source: Iterator[Chunk], waiting: deque[tuple[Chunk, torch.Tensor, Future[float]]]
    ) -> None:
        while self._free:
            chunk = next(source, None)
            if chunk is None:
                return
            buffer = self._free.pop()
            size = chunk.stop - chunk.start + ALIGN
            if buffer.numel() < size:
                # one row longer than a chunk: this buffer grows and stays
                buffer = torch.empty(size, dtype=torch.uint8)
            waiting.append((chunk, buffer, self._pool.submit(self._fill, chunk, buffer)))

    def _fill(self, chunk: Chunk, buffer: torch.Tensor) -> float:
        begun = time.perf_counter()
        offset = chunk.start % ALIGN
        view = buffer.numpy().data[offset : offset + chunk.stop - chunk.start]
        place = chunk.start
        while view:
            got = self._pread(chunk, view, place)
            view, place = view[got:], place + got
        return time.perf_counter() - begun

    def _pread(self, chunk: Chunk, view: memoryview, place: int) -> int:
        name = self._names[chunk.file]
        try:
            got = os.preadv(self._file(chunk.file), [view], place)
        except OSError as error:
            raise ReadError(f"{name}: bytes {place} to {chunk.stop}: {error.strerror}") from error
        if got == 0:
            raise ReadError(f"{name} ends at byte {place}; expected bytes up to {chunk.stop}")
        return got

    def _file(self, index: int) -> int:
        with self._lock:
            if index not in self._files:
                self._files[index] = os.open(self._folder / self._names[index], os.O_RDONLY)
            return self._files[index]

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
