"""A path to a Checkpoint: every tensor's dtype, shape and place, from headers alone.

directory   config.json + index + shards, or shards alone
file        one .safetensors file, config.json beside it
pack        *.headers.json[.gz]: headers without data, to plan only
"""

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from loadscope.loader.checkpoint_directory import (
    CONVERT,
    PICKLED,
    NotACheckpoint,
    open_directory,
    open_file,
)
from loadscope.loader.faults import Faults, pattern_of, plain
from loadscope.loader.findings import Finding, sort_by_level
from loadscope.loader.header_pack import PACK_SUFFIXES, read_pack
from loadscope.loader.header_sizes import DTYPE_BITS
from loadscope.loader.safetensors_header import Shard, Tensor

__all__ = [
    "DTYPE_BITS",
    "Checkpoint",
    "NotACheckpoint",
    "Shard",
    "Tensor",
    "open_checkpoint",
    "pattern_of",
]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: Path
    kind: Literal["directory", "file", "pack"]
    label: str
    config: dict[str, Any] | None
    shards: tuple[Shard, ...]
    tensors: dict[str, Tensor]
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def directory(self) -> Path:
        """Where the shards lie."""
        return self.path if self.kind == "directory" else self.path.parent

    @property
    def total_bytes(self) -> int:
        return sum(tensor.stop - tensor.start for tensor in self.tensors.values())


def open_checkpoint(path: Path | str) -> Checkpoint:
    """The checkpoint as its headers tell it; whatever is wrong with its files is in `findings`.

    Raises NotACheckpoint only if there is nothing to find fault with.
    """
    began, path, faults = time.perf_counter(), Path(path), Faults()
    with _no_cycle_collection():
        kind = _kind_of(path)
        contents = _READERS[kind](path, faults)
    return Checkpoint(
        path=path,
        kind=kind,
        label=contents.label,
        config=contents.config,
        shards=contents.shards,
        tensors=contents.tensors,
        findings=sort_by_level(list(faults.findings())),
        seconds=time.perf_counter() - began,
    )


@contextmanager
def _no_cycle_collection() -> Iterator[None]:
    # a collection walks the hundreds of thousands of objects just parsed, again and again
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _kind_of(path: Path) -> Literal["directory", "file", "pack"]:
    name = plain(path.name)
    if os.path.isdir(path):  # Path.is_dir raises where a parent may not be entered
        return "directory"
    if not os.path.exists(path):
        raise NotACheckpoint(f"{name}: no such file or directory")
    if name.endswith(PACK_SUFFIXES):
        return "pack"
    if path.suffix == ".safetensors":
        return "file"
    advice = CONVERT if path.suffix in PICKLED else ""
    expected = f"a directory, one .safetensors file or a header pack *{PACK_SUFFIXES[0]}"
    raise NotACheckpoint(f"{name}: found a file of another kind; expected {expected}{advice}")


_READERS = {"directory": open_directory, "file": open_file, "pack": read_pack}
