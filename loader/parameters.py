"""The loaded tensors of one rank: allocated once, written in place, with the state they are in."""

from collections.abc import Callable, Container, Iterable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from loadscope.loader.dtypes import ITEM_BYTES, TORCH_NAMES
from loadscope.loader.findings import Finding, finding
from loadscope.loader.plan import Plan
from loadscope.loader.stamps import Stamp, Stamps
from loadscope.loader.state import worst_store
from loadscope.loader.tables import Output
from loadscope.loader.topology import layers_in
from loadscope.loader.undo import UndoLog
from loadscope.loader.views import ParameterView, parameters

if TYPE_CHECKING:
    from loadscope.loader.update import Finished, Received, Update


Memory = Callable[[ParameterView], torch.Tensor]


def torch_dtype(tag: str) -> torch.dtype:
    dtype = getattr(torch, TORCH_NAMES[tag])
    assert isinstance(dtype, torch.dtype)
    return dtype


class ParameterStore:
    """Parameters and derived tensors of one rank by name; addresses never change after allocation.

    `state` is empty, writing, ready or poisoned; `epoch` is odd while writing. `stamps` say in
    which version and epoch each tensor was last written, and what derived ones were made from.
    `memory` gives the tensors to use, with their values; left out, they are allocated.
    Raises RuntimeError from torch if the memory is not there.
    """

    def __init__(
        self, plan: Plan, rank: int, device: str = "cpu", memory: Memory | None = None
    ) -> None:
        self.plan = plan
        self._update: Update | None = None
        self._before = "empty"
        self.undo: UndoLog | None = None
        self.rank = rank
        self.device = torch.device(device)
        self.state = "empty"
        self.epoch = 0
        self.version: str | None = None
        self.stamps = Stamps()
        self.touched: list[str] = []
        self._writing = Stamp(None, 0)
        self.parameters: dict[str, torch.Tensor] = {}
        self.derived: dict[str, torch.Tensor] = {}
        self.addresses: dict[str, int] = {}
        self.scalars: dict[str, float] = {}
        self.flags: dict[str, bool] = {}
        self.initial: dict[str, float] = {}
        for view in parameters(plan, rank):
            tensor = self._allocate(view) if memory is None else memory(view)
            self.parameters[view.name] = tensor
            self.addresses[view.name] = tensor.data_ptr()
            value = plan.targets[view.target].fill.value
            if value is not None:
                self.initial[view.name] = value
        if memory is None:
            self.reset_initial()

    def _allocate(self, view: ParameterView) -> torch.Tensor:
        return torch.empty(view.shape, dtype=torch_dtype(view.dtype), device=self.device)

    def reset_initial(self) -> None:
        """Give parameters that the checkpoint may leave out their initial value."""
        for name, value in self.initial.items():
            if self.epoch % 2:
                self.touch(name)
            self.parameters[name].fill_(value)

    def fill_pattern(self, byte: int) -> None:
        """Set every byte of every parameter, to see afterwards what a load has written."""
        for tensor in self.parameters.values():
            if tensor.numel():
                tensor.reshape(-1).view(torch.uint8).fill_(byte)

    def load_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        *,
        names: Container[str] | None = None,
        layers: Container[int] | None = None,
    ) -> "Received":
        """Weights in checkpoint names and whole shapes, in any order and any number of calls.

        Halves are held until `finish_update`; buffers may be reused between items. `names` and
        `layers` choose among the weights. Raises ValueError if the plan places nothing.
        """
        return self.open_update().load_weights(weights, names=names, layers=layers)

    def finish_update(self) -> "Finished":
        """End the update that `load_weights` opened; says what was left over."""
        finished = self.open_update().finish()
        self._update = None
        return finished

    def open_update(self, version: str | None = None, *, undo: bool = True) -> "Update":
        """The update that `load_weights` feeds: the open one, else a new one of this version.

        `undo` keeps the old bytes of what it writes, so that a failure leaves the old weights; it
        takes as much memory on the host. Both count for a new one only.
        """
        # an update writes through this class, so it can only be known when it is needed
        from loadscope.loader.update import Update

        if self._update is None:
            self._update = Update(self.plan, self, version=version, undo=undo)
        return self._update

    def begin(self, version: str | None = None, *, undo: bool = False) -> None:
        """Open a write of this version; `undo` keeps the old bytes of what it touches."""
        self._before = self.state
        self.epoch += 1
        self.state = "writing"
        self.touched = []
        self.undo = UndoLog(self) if undo else None
        self._writing = Stamp(version, self.epoch)

    def touch(self, name: str) -> None:
        """Say that a parameter or derived tensor is about to be written, before it is."""
        if self.stamps.written.get(name) == self._writing:
            return
        if self.undo is not None:
            self.undo.keep(name)
        self.stamps.written[name] = self._writing
        if name in self.parameters:
            self.touched.append(name)

    def is_new(self, name: str) -> bool:
        """Whether the write that is open, or the last one, has touched it."""
        return self.stamps.written.get(name) == self._writing

    def finish(self) -> None:
        self.epoch += 1
        self.state = "ready"
        self.version = self._writing.version
        self.touched = []

    def poison(self) -> None:
        """A load stopped after the first byte: what is in `touched` is no longer whole."""
        self.epoch += 1
        self.state = "poisoned"

    def leave(self) -> None:
        """End a write that touched nothing, or that was undone: the state is as before."""
        self.epoch += self.epoch % 2
        self.state = self._before

    def roll_back(self) -> None:
        """Put the old bytes back. Raises ValueError if they were not kept."""
        if self.undo is None:
            raise ValueError(f"rank {self.rank} keeps no undo log: its old bytes are gone")
        self.epoch += 1 - self.epoch % 2
        self.state = "writing"
        self.undo.restore()
        self.undo = None
        self.touched = []
        self.leave()

    def mix(self, touched: list[str]) -> None:
        """Whole in itself, but other ranks of the same load hold other weights."""
        self.state = "poisoned"
        self.touched = touched

    def derived_tensor(self, name: str, output: Output) -> torch.Tensor:
        """The tensor of an output on this rank: made once in its memory order, then kept."""
        dtype = torch_dtype(output.dtype)
        tensor = self.derived.get(name)
        if tensor is None:
            memory = [output.shape[dim] for dim in output.order]
            inverse = [output.order.index(dim) for dim in range(len(memory))]
            tensor = torch.empty(memory, dtype=dtype, device=self.device).permute(inverse)
            self.derived[name] = tensor
            self.addresses[name] = tensor.data_ptr()
        assert tensor.shape == output.shape, (name, tensor.shape, output.shape)
        assert tensor.dtype == dtype, (name, tensor.dtype, dtype)
        return tensor


def state_of(stores: Mapping[int, ParameterStore]) -> dict[str, Any]:
    """The common state of one role's stores: the worst of them counts."""
    return {
        "state": worst_store(store.state for store in stores.values()),
        "epoch": max((store.epoch for store in stores.values()), default=0),
        "touched": sum(len(s.touched) for s in stores.values() if s.state == "poisoned"),
    }


def parameter_bytes(plan: Plan, rank: int) -> int:
    """Memory that a rank's parameters and derived tensors will take, in bytes."""
    total = sum(view.nbytes for view in parameters(plan, rank))
    layers = plan.stage_masks[plan.seats[rank].pp]
    for derive in plan.derives:
        for output in derive.outputs:
            ways = 1 if output.split_dim is None else plan.layout.tp_size
            each = prod(output.shape) // ways * ITEM_BYTES[output.dtype]
            total += each * len(layers_in(derive.layers & layers))
    return total


def check_fit(plan: Plan, stores: dict[int, ParameterStore]) -> list[Finding]:
    """Why a plan cannot be loaded into these stores in place; empty if it can."""
    findings: list[Finding] = []
    for rank, store in stores.items():
        if rank >= plan.layout.world:
            return [_misfit(f"rank {rank}", f"{plan.layout.world} ranks", "a server rank more")]
        wanted = {v.name: (v.shape, torch_dtype(v.dtype)) for v in parameters(plan, rank)}
        held = {n: (tuple(t.shape), t.dtype) for n, t in store.parameters.items()}
        differ = [n for n in sorted({*wanted, *held}) if wanted.get(n) != held.get(n)]
        if differ:
            name = differ[0]
            found, loaded = str(wanted.get(name, "no such parameter")), str(held.get(name, "none"))
            findings.append(_misfit(name, found, loaded, len(differ), rank))
    return findings


def _misfit(name: str, found: str, loaded: str, count: int = 1, rank: int = 0) -> Finding:
    return finding(
        "LS602",
        name,
        f"{name} on rank {rank}: the new checkpoint has {found}, the loaded model has {loaded}",
        fix="start a server with this checkpoint; a reload keeps names, shapes and dtypes",
        count=count,
        example=name,
        evidence={"found": found, "loaded": loaded, "rank": rank},
    )
