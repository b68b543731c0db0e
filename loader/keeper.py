"""What stands behind the live weights: how an update is made whole, and the version before it."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

from loadscope.loader.budget import Budget, Lease, OverBudget
from loadscope.loader.parameters import ParameterStore, parameter_bytes
from loadscope.loader.plan import Plan
from loadscope.loader.staging import Staging
from loadscope.loader.views import parameters

Atomicity = Literal["staged", "undo_log", "validated_in_place", "none"]
Wanted = Literal["require", "prefer", "off"]
Place = tuple[str, int]
Exchange = Callable[[Staging], object]
Names = dict[str, dict[int, list[str]]]
SECOND_COPY, OLD_BYTES = "a second copy of the weights", "the old bytes of touched parameters"


@dataclass(frozen=True, slots=True)
class Order:
    """One role's new weights on the ranks that hold it; `touched` by rank, None: everything."""

    role: str
    plan: Plan
    stores: Mapping[int, ParameterStore]
    touched: Mapping[int, Set[str] | None]

    def nbytes(self, rank: int) -> int:
        """Memory of what is touched on a rank, with all derived tensors."""
        every, touched = parameter_bytes(self.plan, rank), self.touched[rank]
        if touched is None:
            return every
        views = parameters(self.plan, rank)
        return every - sum(view.nbytes for view in views if view.name not in touched)


@dataclass(frozen=True, slots=True)
class Choice:
    """How the update is made whole, why so, and what each way would take in bytes.

    `holds_bytes`: memory that stands behind the live weights then, with what is there already.
    """

    atomicity: Atomicity
    reason: str
    needs_bytes: Mapping[str, int]
    holds_bytes: int = 0


class _Before(NamedTuple):
    """A live store when the update began to write."""

    epoch: int
    state: str


class Keeper:
    """Second copies and old bytes of every role and rank of a process; draws on one budget.

    `free` tells how many bytes a device has left, None where it does not tell.
    """

    def __init__(self, budget: Budget, free: Callable[[str], int | None]) -> None:
        self._budget, self._free = budget, free
        self._staging: dict[Place, Staging] = {}
        self._lease: Lease | None = None
        self._orders: list[Order] = []
        self._before: dict[Place, _Before] = {}
        self._epochs: dict[Place, int] = {}
        self._atomicity: Atomicity = "none"

    def choose(self, wanted: Wanted, orders: Sequence[Order], *, is_verified: bool) -> Choice:
        """The best way that fits; raises OverBudget if one is required and none does.

        `is_verified`: every byte is compared with a checksum or read once before the first copy.
        """
        total = sum(order.nbytes(rank) for order in orders for rank in order.stores)
        needs = {"staged": total, "undo_log": total, "validated_in_place": 0}
        in_place: Atomicity = "validated_in_place" if is_verified else "none"
        stores = [store for order in orders for store in order.stores.values()]
        if not stores or any(store.state != "ready" for store in stores):
            return Choice("none", "no whole weights were there to keep", needs)
        if wanted == "off":
            return Choice(in_place, "asked for: atomic is off", needs)
        device = stores[0].device.type if stores else "cpu"
        holds = self._second_copies(orders)
        refused = self._refusal(holds, self._copies_bytes, device, SECOND_COPY)
        if refused is None:
            return Choice("staged", "a second copy fits", needs, holds)
        if device != "cpu" and self._refusal(total, self._logs_bytes, "cpu", OLD_BYTES) is None:
            return Choice("undo_log", f"{refused}; the old bytes fit on the host", needs, total)
        if wanted == "require":
            raise refused
        return Choice(in_place, str(refused), needs)

    def _second_copies(self, orders: Sequence[Order]) -> int:
        """Memory of all second copies once these orders are open: what is held is used again."""
        places = [(order, rank) for order in orders for rank in order.stores]
        added = sum(order.nbytes(rank) - self._reused(order, rank) for order, rank in places)
        return self._copies_bytes + added

    def _reused(self, order: Order, rank: int) -> int:
        staging = self._staging.get((order.role, rank))
        if staging is None or staging.live is not order.stores[rank]:
            return 0
        return staging.reused_bytes(order.touched[rank])

    def _refusal(self, nbytes: int, held: int, device: str, what: str) -> OverBudget | None:
        """Why so many bytes, of which some are held already, do not fit beside the weights."""
        free = self._free(device)
        if free is not None and nbytes - held > free:
            return OverBudget(what, nbytes - held, free, None)
        own = self._lease.nbytes if self._lease is not None else 0
        left, limit = self._budget.free_bytes, self._budget.limit_bytes
        if left is not None and nbytes > left + own:
            return OverBudget(what, nbytes, left + own, limit)
        return None

    def prepare(self, choice: Choice) -> None:
        """Begin an update in this way; the version before the last one is given up.

        Raises OverBudget if the budget has less left than when the choice was made.
        """
        self._drop_logs()
        if choice.atomicity != "staged":
            self._drop_copies()
        self._release()
        self._orders, self._before, self._epochs = [], {}, {}
        self._atomicity = choice.atomicity
        try:
            self._lease = self._take(choice)
        except OverBudget:
            self.forget()
            raise

    def _take(self, choice: Choice) -> Lease | None:
        if choice.atomicity not in ("staged", "undo_log"):
            return None
        what = SECOND_COPY if choice.atomicity == "staged" else OLD_BYTES
        return self._budget.take(choice.holds_bytes, what)

    @property
    def keeps_old_bytes(self) -> bool:
        """Whether the loads must keep an undo log."""
        return self._atomicity == "undo_log"

    def open(self, order: Order) -> dict[int, ParameterStore]:
        """The stores that this role's load writes to: second copies if staged, else the live ones.

        Raises RuntimeError from torch if the memory is not there.
        """
        self._orders.append(order)
        for rank, store in order.stores.items():
            self._before[order.role, rank] = _Before(store.epoch, store.state)
        if self._atomicity != "staged":
            return dict(order.stores)
        opened = {}
        for rank, live in order.stores.items():
            staging = self._staging.get((order.role, rank))
            if staging is None or staging.live is not live:
                staging = self._staging[order.role, rank] = Staging(live)
            opened[rank] = staging.open(order.plan, order.touched[rank])
        return opened

    def switch(self) -> None:
        """Let what was loaded beside the live weights take their place, on all roles and ranks.

        An error puts back what was exchanged, then passes through. In place nothing is left to do.
        """
        self._every(Staging.swap, Staging.swap_back)

    def _every(self, do: Exchange, undo: Exchange) -> None:
        """One exchange on all second copies of the update, or on none."""
        done: list[Staging] = []
        try:
            for staging in self._begun():
                do(staging)
                done.append(staging)
        except BaseException:
            for staging in reversed(done):
                undo(staging)
            raise

    def _begun(self) -> Iterator[Staging]:
        if self._atomicity == "staged":
            for order in self._orders:
                for rank in order.stores:
                    yield self._staging[order.role, rank]

    def written(self) -> Names:
        """Parameters of the live weights that the update has written so far."""
        return {
            order.role: {
                rank: self._written((order.role, rank), store)
                for rank, store in order.stores.items()
            }
            for order in self._orders
        }

    def settle(self, *, retain: bool) -> None:
        """The update counts: keep what brings the version before back, or let it go."""
        if not retain:
            self.forget()
        self._remember()

    def _remember(self) -> None:
        """The epochs at which the version before can be brought back."""
        self._epochs = {
            (order.role, rank): store.epoch
            for order in self._orders
            for rank, store in order.stores.items()
        }

    @property
    def can_roll_back(self) -> bool:
        """Whether the version before is there, whole, and nothing was written since."""
        if not self._orders or self._atomicity not in ("staged", "undo_log"):
            return False
        return all(self._is_kept(o.role, r, s) for o in self._orders for r, s in o.stores.items())

    def _is_kept(self, role: str, rank: int, store: ParameterStore) -> bool:
        if self._epochs.get((role, rank)) != store.epoch:
            return False
        if self._atomicity == "undo_log":
            return store.undo is not None
        staging = self._staging.get((role, rank))
        return staging is not None and staging.is_swapped

    def roll_back(self) -> None:
        """The version before again, without reading a file. ValueError if it is not there.

        An error leaves the new version on all roles and ranks, then passes through.
        """
        if not self.can_roll_back:
            raise ValueError("the version before is no longer kept")
        if self._atomicity == "undo_log":
            self._undo_live()
        else:
            self._swap_back()
        self._orders = []

    def _swap_back(self) -> None:
        try:
            self._every(Staging.swap_back, Staging.swap)
        except BaseException:
            self._remember()
            raise

    @property
    def is_switched(self) -> bool:
        """Whether the new weights have taken the place of the old ones, out of second copies."""
        return any(staging.is_swapped for staging in self._begun())

    def undo(self) -> bool:
        """After a failure past the first byte: whether all live weights are the old ones again."""
        if self._atomicity != "staged":
            return self._undo_live()
        if self.is_switched:
            self._swap_back()
        return True

    def _undo_live(self) -> bool:
        live = {(o.role, rank): store for o in self._orders for rank, store in o.stores.items()}
        for store in live.values():
            if store.undo is not None:
                store.roll_back()
        self._release()
        if any(self._written(place, store) for place, store in live.items()):
            return False
        for place, store in live.items():
            if self._before[place].state == "ready":
                # it may count as part of a mixture that is none any more
                store.state, store.touched = "ready", []
        return all(store.state == "ready" for store in live.values())

    def _written(self, place: Place, store: ParameterStore) -> list[str]:
        """What this update has written there; before it begins, new is what the last one wrote."""
        if store.epoch == self._before[place].epoch:
            return []
        return [name for name in store.parameters if store.is_new(name)]

    def forget(self) -> None:
        """Let the version before go, and its memory."""
        self._drop_copies()
        self._drop_logs()
        self._release()

    def _drop_copies(self) -> None:
        for staging in self._staging.values():
            staging.drop()
        self._staging = {}

    def _drop_logs(self) -> None:
        for order in self._orders:
            for store in order.stores.values():
                store.undo = None

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    @property
    def held_bytes(self) -> int:
        """Memory that the version before takes."""
        return self._copies_bytes + self._logs_bytes

    @property
    def _copies_bytes(self) -> int:
        return sum(staging.nbytes for staging in self._staging.values())

    @property
    def _logs_bytes(self) -> int:
        logs = (store.undo for order in self._orders for store in order.stores.values())
        return sum(log.nbytes for log in logs if log is not None)
