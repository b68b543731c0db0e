"""Old bytes of what a write touches, kept on the host until the write is known to be good."""

from typing import TYPE_CHECKING

import torch

from loadscope.loader.copies import copy_into

if TYPE_CHECKING:
    from loadscope.loader.parameters import ParameterStore


class UndoLog:
    """The tensors of one rank as they were before a write; memory of what was touched, no more."""

    def __init__(self, store: "ParameterStore") -> None:
        self._store = store
        self._kept: dict[str, torch.Tensor] = {}
        self._scalars, self._flags = dict(store.scalars), dict(store.flags)
        self._stamps, self._version = store.stamps.copy(), store.version
        self._plan = store.plan

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self._kept.values())

    @property
    def kept(self) -> dict[str, torch.Tensor]:
        """Old values by name, on the host."""
        return self._kept

    @property
    def version(self) -> str | None:
        """Of the weights that are kept."""
        return self._version

    def keep(self, name: str) -> None:
        """Copy a tensor before its first change; one that does not exist yet needs no copy."""
        tensor = self._tensor(name)
        if tensor is not None and name not in self._kept:
            self._kept[name] = tensor.detach().to("cpu", copy=True)

    def restore(self) -> None:
        """Everything as it was: tensors in place, scalars, flags, versions."""
        for name, old in self._kept.items():
            tensor = self._tensor(name)
            assert tensor is not None, name
            copy_into(tensor, old)
        store = self._store
        store.scalars, store.flags = dict(self._scalars), dict(self._flags)
        store.stamps, store.version = self._stamps.copy(), self._version
        store.plan = self._plan

    def _tensor(self, name: str) -> torch.Tensor | None:
        found = self._store.parameters.get(name)
        return found if found is not None else self._store.derived.get(name)
