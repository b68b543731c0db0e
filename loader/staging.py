"""A second copy of what an update touches on one rank: written first, swapped in last."""

from collections.abc import Iterable, Set

import torch

from loadscope.loader.copies import copy_into
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Plan
from loadscope.loader.views import ParameterView

CHUNK_BYTES = 16 << 20


class Staging:
    """The second copy beside one live store; its memory stays for the next update.

    `open` gives a store to load into, `swap` exchanges contents, so that the live tensors keep
    their addresses and the second copy holds the version before: `swap_back` brings it back.
    """

    def __init__(self, live: ParameterStore) -> None:
        self.live = live
        self.store: ParameterStore | None = None
        self.is_swapped = False
        self._exchanged: list[str] = []
        self._memory: dict[str, torch.Tensor] = {}
        self._derived: dict[str, torch.Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Memory of the second copy."""
        return _nbytes((*self._memory.values(), *self._derived.values()))

    def reused_bytes(self, touched: Set[str] | None) -> int:
        """How much of that memory serves these parameters (None: all) and derived tensors again."""
        again = [t for name, t in self._memory.items() if touched is None or name in touched]
        return _nbytes((*again, *self._derived.values()))

    def open(self, plan: Plan, touched: Set[str] | None) -> ParameterStore:
        """A store like the live one whose `touched` parameters (None: all) are the second copy.

        What is written in part begins with the live values. Raises RuntimeError from torch if the
        memory is not there.
        """

        def memory(view: ParameterView) -> torch.Tensor:
            there = self.live.parameters[view.name]
            if touched is not None and view.name not in touched:
                return there
            if view.name not in self._memory:
                self._memory[view.name] = torch.empty_like(there)
            own = self._memory[view.name]
            return own if touched is None else own.copy_(there)

        live = self.live
        store = ParameterStore(plan, live.rank, str(live.device), memory)
        store.epoch, store.state, store.version = live.epoch, live.state, live.version
        store.stamps, store.derived = live.stamps.copy(), self._derived
        store.scalars, store.flags = dict(live.scalars), dict(live.flags)
        self.store, self.is_swapped, self._exchanged = store, False, []
        return store

    def swap(self) -> list[str]:
        """Exchange what the load wrote with the live values; returns the names.

        The epoch is odd meanwhile. An error puts everything back before it passes through.
        """
        staged = self.store
        assert staged is not None, "nothing was loaded beside the live weights"
        assert not self.is_swapped, "the second copy holds the version before"
        assert staged.state == "ready", f"what was loaded beside them is {staged.state}"
        names = [name for name in (*staged.parameters, *staged.derived) if staged.is_new(name)]
        self._exchange(names, staged.version)
        self.is_swapped, self._exchanged = True, names
        return names

    def swap_back(self) -> list[str]:
        """The version before again, out of the second copy."""
        old = self.store
        assert self.is_swapped, "the second copy does not hold the version before"
        assert old is not None, "nothing was loaded beside the live weights"
        names = self._exchanged
        self._exchange(names, old.version)
        self.is_swapped, self._exchanged = False, []
        return names

    def _exchange(self, names: list[str], version: str | None) -> None:
        live, other = self.live, self.store
        assert other is not None
        live.begin(version)
        done: list[tuple[torch.Tensor, torch.Tensor]] = []
        try:
            for name in names:
                for one, two in _pieces(_find(live, name), _find(other, name)):
                    _exchange(one, two)
                    done.append((one, two))
        except BaseException:
            # poisoned until all is back, and for good if this fails too
            live.touched = [name for name in names if name in live.parameters]
            live.poison()
            for one, two in reversed(done):
                _exchange(one, two)
            live.touched = []
            live.leave()
            raise
        live.scalars, other.scalars = other.scalars, live.scalars
        live.flags, other.flags = other.flags, live.flags
        live.stamps, other.stamps = other.stamps, live.stamps
        live.plan, other.plan = other.plan, live.plan
        before = live.version
        live.finish()
        other.version = before

    def drop(self) -> None:
        """Let the memory go, and with it the version before."""
        self.store, self.is_swapped, self._exchanged = None, False, []
        self._memory, self._derived = {}, {}


def _find(store: ParameterStore, name: str) -> torch.Tensor:
    return store.parameters[name] if name in store.parameters else store.derived[name]


def _pieces(one: torch.Tensor, two: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The bytes of two tensors of one shape and memory order, in pieces of bounded size."""
    flat = (_bytes_of(one), _bytes_of(two))
    starts = range(0, len(flat[0]), CHUNK_BYTES)
    return [(flat[0][a : a + CHUNK_BYTES], flat[1][a : a + CHUNK_BYTES]) for a in starts]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes in memory order, as a view."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    return tensor.permute(order).view(-1).view(torch.uint8)


def _exchange(one: torch.Tensor, two: torch.Tensor) -> None:
    """Swap contents; an error in between leaves both as they were."""
    spare = one.clone()
    try:
        copy_into(one, two)
        _copy_safely(two, spare, one)
    except BaseException:
        copy_into(one, spare)
        raise


def _copy_safely(target: torch.Tensor, source: torch.Tensor, before: torch.Tensor) -> None:
    """Copy; an error puts back what the target held before."""
    try:
        copy_into(target, source)
    except BaseException:
        copy_into(target, before)
        raise


def _nbytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
