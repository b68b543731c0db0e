"""Readers for tests: one spoils its buffers after use, one withholds what it should bring."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch

from loadscope.loader.execute import open_reader
from loadscope.loader.rank_load import ReaderFactory
from loadscope.loader.read import Loaded, Reader
from loadscope.loader.steps import Chunk

SPOILT = 0x5A
Change = Callable[[Loaded], Loaded]


class ChangingReader:
    """A real reader between whose reads and the load something happens to the chunks."""

    def __init__(self, inner: Reader, before: Change, after: Callable[[Loaded], None]) -> None:
        self._inner = inner
        self._before = before
        self._after = after

    def read(self, chunks: Iterable[Chunk]) -> Iterator[Loaded]:
        for loaded in self._inner.read(chunks):
            yield self._before(loaded)
            self._after(loaded)

    def close(self) -> None:
        self._inner.close()


def spoiling() -> ReaderFactory:
    """Overwrites every buffer as soon as the load asks for the next one."""

    def open_it(folder: Path, names: list[str], device: torch.device) -> Reader:
        return ChangingReader(open_reader(folder, names, device), _same, _spoil)

    return open_it


def withholding(is_dropped: Callable[[str], bool]) -> ReaderFactory:
    """Brings every chunk, but without the rows of some tensors, as a load with a hole would."""

    def open_it(folder: Path, names: list[str], device: torch.device) -> Reader:
        def drop(loaded: Loaded) -> Loaded:
            chunk = loaded.chunk
            chunk.uses = [use for use in chunk.uses if not is_dropped(use.piece.tensor)]
            return loaded

        return ChangingReader(open_reader(folder, names, device), drop, _nothing)

    return open_it


def _same(loaded: Loaded) -> Loaded:
    return loaded


def _nothing(loaded: Loaded) -> None:
    """What a reader without tricks does after a chunk."""


def _spoil(loaded: Loaded) -> None:
    loaded.data.fill_(SPOILT)
