"""Does a load leave the same twice: one store, the checkpoint again, everything compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from loadscope.loader.checkpoint import Checkpoint
from loadscope.loader.control import Control
from loadscope.loader.events import discard
from loadscope.loader.execute import open_reader
from loadscope.loader.fingerprints import PATTERNS, sha256
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Plan
from loadscope.loader.rank_load import RankLoad, ReaderFactory
from loadscope.loader.writing import Writing

# none: places and kinds only; digest: a hash of each tensor; bytes: a copy of each on the host
Contents = Literal["none", "digest", "bytes"]
What = Literal["name", "dtype", "shape", "stride", "address", "bytes", "scalar", "flag"]
CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that is not what it was; None stands for what is not there.

    `bytes` differ: both hashes, and the first unequal element (row-major) if bytes were kept.
    """

    what: What
    name: str
    first: Any
    second: Any
    first_changed_element: int | None = None

    def as_json(self) -> dict[str, Any]:
        found = {"what": self.what, "name": self.name, "first": self.first, "second": self.second}
        if self.first_changed_element is not None:
            found["first_changed_element"] = self.first_changed_element
        return found


@dataclass(frozen=True, slots=True)
class Identity:
    """How much was compared, in tensors and bytes, and all that differs."""

    contents: Contents
    tensors: int
    nbytes: int
    scalars: int
    flags: int
    differences: tuple[Difference, ...]

    @property
    def is_identical(self) -> bool:
        return not self.differences

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": "pass" if self.is_identical else "fail",
            "contents": self.contents,
            "tensors": self.tensors,
            "bytes": self.nbytes,
            "scalars": self.scalars,
            "flags": self.flags,
            "differences": [one.as_json() for one in self.differences],
        }


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor as it was. `tensor` is the live one: while it is held, no other gets its address."""

    tensor: Tensor
    address: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    digest: str | None
    copy: Tensor | None


class Snapshot:
    """Names, places, values, scalars and flags of one store at one moment."""

    def __init__(self, store: ParameterStore, contents: Contents) -> None:
        self.contents = contents
        self._tensors = {name: _describe(one, contents) for name, one in _tensors(store).items()}
        self._scalars, self._flags = dict(store.scalars), dict(store.flags)

    @classmethod
    def take(cls, store: ParameterStore, contents: Contents = "bytes") -> "Snapshot":
        """What stands in a store now. `bytes` needs its memory once more, on the host."""
        return cls(store, contents)

    def compare(self, store: ParameterStore) -> Identity:
        """What is different in the store now: addresses, strides, bytes …, tensor by tensor."""
        now = _tensors(store)
        differences: list[Difference] = []
        for name in sorted({*self._tensors, *now}):
            differences += self._compare(name, self._tensors.get(name), now.get(name))
        differences += _unequal("scalar", self._scalars, store.scalars)
        differences += _unequal("flag", self._flags, store.flags)
        return Identity(
            contents=self.contents,
            tensors=len(now),
            nbytes=sum(one.numel() * one.element_size() for one in now.values()),
            scalars=len(store.scalars),
            flags=len(store.flags),
            differences=tuple(differences),
        )

    def _compare(self, name: str, old: _Tensor | None, new: Tensor | None) -> list[Difference]:
        if old is None or new is None:
            first, second = (None if one is None else "there" for one in (old, new))
            return [Difference("name", name, first, second)]
        facts: list[tuple[What, Any, Any]] = [
            ("dtype", str(old.dtype), str(new.dtype)),
            ("shape", list(old.shape), list(new.shape)),
            ("stride", list(old.stride), list(new.stride())),
            ("address", old.address, new.data_ptr()),
        ]
        found = [Difference(w, name, first, now) for w, first, now in facts if first != now]
        if (old.dtype, old.shape) == (new.dtype, tuple(new.shape)):
            found += _compare_bytes(name, old, new)
        return found


def _tensors(store: ParameterStore) -> dict[str, Tensor]:
    return {**store.parameters, **store.derived}


def _describe(tensor: Tensor, contents: Contents) -> _Tensor:
    return _Tensor(
        tensor=tensor,
        address=tensor.data_ptr(),
        shape=tuple(tensor.shape),
        stride=tensor.stride(),
        dtype=tensor.dtype,
        digest=sha256(tensor) if contents == "digest" else None,
        copy=tensor.detach().to("cpu", copy=True) if contents == "bytes" else None,
    )


def _compare_bytes(name: str, old: _Tensor, new: Tensor) -> list[Difference]:
    if old.copy is not None:
        element = _first_difference(old.copy, new)
        if element is None:
            return []
        return [Difference("bytes", name, sha256(old.copy), sha256(new), element)]
    if old.digest is None or old.digest == (digest := sha256(new)):
        return []
    return [Difference("bytes", name, old.digest, digest)]


def _first_difference(old: Tensor, new: Tensor) -> int | None:
    """The first element, row-major, whose bytes are unequal."""
    if not old.numel():
        return None
    one, two = (t.detach().contiguous().view(-1).view(torch.uint8) for t in (old, new))
    for start in range(0, len(one), CHUNK_BYTES):
        stop = start + CHUNK_BYTES
        is_unequal = one[start:stop].numpy() != two[start:stop].cpu().numpy()
        if is_unequal.any():
            return (start + int(is_unequal.argmax())) // old.element_size()
    return None


def _unequal(
    what: What, first: Mapping[str, float], second: Mapping[str, float]
) -> list[Difference]:
    """Numbers by name that are unequal, or there only once."""
    return [
        Difference(what, name, first.get(name), second.get(name))
        for name in sorted({*first, *second})
        # as text NaN is equal to itself, and 0.0 is not -0.0
        if repr(first.get(name)) != repr(second.get(name))
    ]


def reload_identity(
    plan: Plan,
    checkpoint: Checkpoint,
    store: ParameterStore,
    *,
    contents: Contents = "bytes",
    control: Control | None = None,
    make_reader: ReaderFactory = open_reader,
) -> Identity:
    """Load the store's rank twice and compare; it is ready afterwards. Nobody may read meanwhile.

    A store that is ready has had its first load, and must hold this checkpoint. Before each load
    all is spoilt, so that what only survives is found. Raises LoadError; it is poisoned then.
    """
    control = control if control is not None else Control()
    if store.state != "ready":
        _load(plan, checkpoint, store, PATTERNS[0], control, make_reader)
    first = Snapshot.take(store, contents)
    _load(plan, checkpoint, store, PATTERNS[1], control, make_reader)
    return first.compare(store)


def _load(
    plan: Plan,
    checkpoint: Checkpoint,
    store: ParameterStore,
    byte: int,
    control: Control,
    make_reader: ReaderFactory,
) -> None:
    version = store.version
    _spoil(store, byte)
    run = RankLoad(plan, store, discard, control, {}, Writing(version))
    run.load(checkpoint.directory, make_reader)


def _spoil(store: ParameterStore, byte: int) -> None:
    """Fill every tensor with a byte and forget scalars and flags; nothing there may be read."""
    store.begin()
    store.touched = list(store.parameters)
    store.poison()
    store.fill_pattern(byte)
    for tensor in store.derived.values():
        element = torch.full((tensor.element_size(),), byte, dtype=torch.uint8)
        tensor.copy_(element.view(tensor.dtype)[0].expand(tensor.shape))
    store.scalars, store.flags = {}, {}
