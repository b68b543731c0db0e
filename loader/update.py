"""Weights that are handed over in memory: any names, in any order, in any number of calls."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from loadscope.loader.coverage import multiplicity
from loadscope.loader.derive import derive_layer
from loadscope.loader.dtypes import TAGS
from loadscope.loader.findings import Finding, finding
from loadscope.loader.incoming import Names
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.place import Box
from loadscope.loader.plan import Plan
from loadscope.loader.resolve import Tail
from loadscope.loader.steps import Piece, read_shape
from loadscope.loader.write import Writer, box_of


@dataclass(frozen=True, slots=True)
class Received:
    """What became of the weights of one call.

    `written`: names whose slices stand in this rank's parameters since this call, those that were
    held before it too. `held`: names that wait for a partner, from earlier calls too. `skipped`:
    names this rank does not need, with the reason. `failed`: names that were refused, with what
    is wrong. `repeated`: names that came before in this update, written again. `refreshed`:
    derived tensors that were computed anew.
    """

    written: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, Finding] = field(default_factory=dict)
    repeated: tuple[str, ...] = ()
    refreshed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """How an update ended: `state` is the store's, `partial` lists parameters written in part.

    `held`: names that still waited. `findings`: why it did not count, and remarks. `weights`: new,
    unchanged (nothing was taken), rolled_back (the old ones stand again) or poisoned; `touched`:
    the parameters that had been written when it was rolled back or poisoned.
    """

    state: str
    weights: str
    touched: tuple[str, ...]
    held: tuple[str, ...]
    partial: tuple[str, ...]
    parameters_written: int
    refreshed: tuple[str, ...]
    findings: tuple[Finding, ...]


class Update:
    """One update of one rank's store, open until `finish`; `undo` keeps the old bytes till then.

    Every tensor is resolved and checked before a byte of it is written. Halves wait as owned
    copies, so the caller may reuse its buffers between items. A tensor that comes again is
    written again; the last one counts, also where an earlier one was refused.
    """

    def __init__(
        self, plan: Plan, store: ParameterStore, *, version: str | None = None, undo: bool = True
    ) -> None:
        if not plan.shapes:
            raise ValueError(f"the plan of {plan.label} places nothing: see its findings")
        self.plan = plan
        self.store = store
        self.version = version
        self._undo = undo
        self._seat = plan.seats[store.rank]
        self._names = Names(plan)
        self._writer = Writer(plan.sources, store)
        self._boxes: dict[str, set[Box]] = {}
        self._seen: set[str] = set()
        self._refused: dict[str, Finding] = {}
        self._broken_off: Finding | None = None
        self._was_ready = store.state == "ready"
        self._dirty: set[tuple[int, int]] = set()

    @property
    def held(self) -> tuple[str, ...]:
        # a scale that several parts need waits once for each
        return tuple(dict.fromkeys(self._writer.waiting))

    @property
    def held_bytes(self) -> int:
        """Memory of the copies that wait."""
        return self._writer.held_bytes

    def load_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        *,
        names: Container[str] | None = None,
        layers: Container[int] | None = None,
    ) -> Received:
        """Write what fits, hold halves, list the rest; `names` and `layers` choose among them.

        What `weights` raises passes through. The update can then only end well if every parameter
        is written in it: nobody knows what has not come.
        """
        call = _Call(taken=dict.fromkeys(self.held))
        try:
            for name, tensor in weights:
                self._receive(name, tensor.detach(), call, names, layers)
        except BaseException as error:
            self._broken_off = _broken_off(error)
            raise
        refreshed = self._refresh(only_whole=True)
        held = self.held
        waiting = frozenset(held)
        return Received(
            written=tuple(name for name in call.taken if name not in waiting),
            held=held,
            skipped=call.skipped,
            failed=call.failed,
            repeated=tuple(call.repeated),
            refreshed=refreshed,
        )

    def finish(self) -> Finished:
        """Refresh what is left, and say whether the parameters are whole.

        The new weights count if nothing waits, nothing was refused, and every parameter was
        written now or was whole before. Else the old ones are put back, if they were whole; or the
        store is poisoned, with the touched parameters listed. A store of which no tensor was taken
        keeps its state.
        """
        held = self.held
        refreshed, underived = self._refresh_last() if not held else ((), ())
        partial = tuple(name for name in self._boxes if not self._is_whole(name))
        is_complete = not (partial or self._unwritten())
        broken = () if is_complete or self._broken_off is None else (self._broken_off,)
        wrong = (*broken, *self._refused.values(), *_orphans(held), *underived)
        is_begun = self.store.epoch % 2 == 1
        if is_begun and not (self._was_ready or is_complete or wrong):
            wrong = (_incomplete((*partial, *self._unwritten())),)
        touched = tuple(self._boxes)
        weights = self._end(is_good=(is_complete or self._was_ready) and not wrong)
        return Finished(
            state=self.store.state,
            weights=weights,
            touched=touched if weights in ("rolled_back", "poisoned") else (),
            held=held,
            partial=partial,
            parameters_written=len(self._boxes) - len(partial),
            refreshed=refreshed,
            findings=(*wrong, *self._writer.remarks),
        )

    def _unwritten(self) -> list[str]:
        """Parameters that got nothing and have no initial value to stand for it."""
        done = self._boxes.keys() | self.store.initial.keys()
        return [name for name in self.store.parameters if name not in done]

    def _begin(self) -> None:
        if self.store.epoch % 2:
            return
        self._was_ready = self.store.state == "ready"
        self.store.begin(self.version, undo=self._undo and self._was_ready)
        if not self._was_ready:
            # what these weights leave out must not keep the value of a load that failed
            self.store.reset_initial()

    def _end(self, *, is_good: bool) -> str:
        if self.store.epoch % 2 == 0:
            return "unchanged"
        if is_good:
            self.store.finish()
            # the update is over: the old bytes are not needed any more
            self.store.undo = None
            return "new"
        if self.store.undo is not None:
            self.store.roll_back()
            return "rolled_back"
        self.store.touched = list(self._boxes)
        self.store.poison()
        return "poisoned"

    def _receive(
        self,
        name: str,
        tensor: torch.Tensor,
        call: "_Call",
        names: Container[str] | None,
        layers: Container[int] | None,
    ) -> None:
        dtype = TAGS.get(str(tensor.dtype).removeprefix("torch."), str(tensor.dtype))
        tail, layer, wrong = self._names.find(name, dtype, tuple(tensor.shape))
        is_wanted = names is None or name in names
        if layers is not None and is_wanted:
            is_wanted = not tail.is_top and layer in layers
        if not is_wanted:
            call.skipped[name] = "not_requested"
        elif wrong is not None:
            call.failed[name] = self._refused[name] = wrong
        else:
            what, reason = self._names.outcome(tail, layer, self.store.rank)
            if what == "skipped":
                call.skipped[name] = str(reason)
            else:
                self._take(name, tensor, tail, layer, call)

    def _take(self, name: str, tensor: torch.Tensor, tail: Tail, layer: int, call: "_Call") -> None:
        if name in self._seen:
            call.repeated[name] = None
        self._seen.add(name)
        call.taken[name] = None
        self._begin()
        assert tail.source is not None
        for index in self.plan.uses(tail.source):
            placement = self.plan.placements[(index, self._seat.tp)]
            source = self.plan.sources[index]
            if source.experts and placement.slot(tail.expert) is None:
                continue
            shape = read_shape(source)
            piece = Piece(
                name, index, tail.expert, tail.dtype, shape, 0, source.is_read_whole,
                placement.source_box, placement.target_box_of(tail.expert),
            )  # fmt: skip
            assert source.target is not None
            self._write(source.target, layer, piece, tensor.reshape(shape or (1,)))
        self._refused.pop(name, None)

    def _write(self, target: int, layer: int, piece: Piece, values: torch.Tensor) -> None:
        param = self.plan.targets[target].full_name(layer)
        boxes = self._boxes.setdefault(param, set())
        self.store.touch(param)
        zero = self.plan.zero_boxes.get((target, self._seat.tp))
        if zero is not None:
            box_of(self.store.parameters[param], zero).zero_()
            boxes.add(zero)
        # all inputs of a conversion have the box of its result
        boxes.discard(piece.target_box)
        first, last = piece.rows
        if self._writer.write(param, piece, (first, last), values[first:last]).elements:
            boxes.add(piece.target_box)
        self._mark_dirty(target, layer)

    def _mark_dirty(self, target: int, layer: int) -> None:
        name = self.plan.targets[target].name
        for number, derive in enumerate(self.plan.derives):
            if name in derive.inputs and derive.layers >> layer & 1:
                self._dirty.add((number, layer))

    def _is_whole(self, param: str) -> bool:
        """Whether every element was written in this update, however often."""
        boxes, shape = self._boxes.get(param, set()), tuple(self.store.parameters[param].shape)
        return 0 not in multiplicity(tuple(boxes), shape)

    def _refresh_last(self) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
        """What is left to derive; what the machine refuses to compute fails the update."""
        try:
            return self._refresh(only_whole=False), ()
        except RuntimeError as error:
            return (), (_underived(error),)

    def _refresh(self, *, only_whole: bool) -> tuple[str, ...]:
        """Derive anew what depends on changed parameters; early only where all inputs are new."""
        refreshed: list[str] = []
        for number, layer in sorted(self._dirty):
            derive = self.plan.derives[number]
            inputs = [name.replace("{layer}", str(layer)) for name in derive.inputs]
            if only_whole and not all(self._is_whole(name) for name in inputs):
                continue
            if not all(self._was_ready or self._is_whole(name) for name in inputs):
                continue
            refreshed += derive_layer(self.plan, self.store, derive, layer).names
            self._dirty.discard((number, layer))
        return tuple(refreshed)


@dataclass(slots=True)
class _Call:
    """What one call has seen so far."""

    taken: dict[str, None]
    repeated: dict[str, None] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, Finding] = field(default_factory=dict)


def _broken_off(error: BaseException) -> Finding:
    return finding(
        "LS601",
        "weights",
        f"the weights broke off: {type(error).__name__}: {error}",
        fix="send all weights again in a new update",
    )


def _underived(error: RuntimeError) -> Finding:
    return finding(
        "LS601",
        "weights",
        f"derived tensors were not computed: {type(error).__name__}: {error}",
        fix="correct the cause, as a rule memory, and send all weights again in a new update",
    )


def _incomplete(names: tuple[str, ...]) -> Finding:
    return finding(
        "LS501",
        names[0],
        f"{len(names):,} parameters of a store that held no weights were not wholly written, the "
        f"first is {names[0]}",
        fix="send all weights in one update before sending parts of them",
        count=len(names),
        example=names[0],
        evidence={"names": list(names[:20])},
    )


def _orphans(held: tuple[str, ...]) -> tuple[Finding, ...]:
    if not held:
        return ()
    return (
        finding(
            "LS504",
            held[0],
            f"{held[0]} still waits for its partner at the end of the update"
            + (f", and {len(held) - 1} more do" if len(held) > 1 else ""),
            fix="send both halves of a pair in one update",
            count=len(held),
            example=held[0],
            evidence={"names": list(held[:20])},
        ),
    )
