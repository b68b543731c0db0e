"""The parameters that this process holds, by role and rank; allocated together, then kept."""

from collections.abc import Iterator, Mapping, Sequence

from loadscope.app.memory import available_bytes
from loadscope.app.rank_choice import choose_ranks
from loadscope.app.roles import Role
from loadscope.app.settings import Settings
from loadscope.app.updates.role_loads import RoleLoad
from loadscope.loader.parameters import ParameterStore, parameter_bytes


class RoleStores(Mapping[Role, Mapping[int, ParameterStore]]):
    """Stores by role, then by rank; empty before the first allocation."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stores: dict[Role, dict[int, ParameterStore]] = {}

    def __getitem__(self, role: Role) -> dict[int, ParameterStore]:
        return self._stores[role]

    def __iter__(self) -> Iterator[Role]:
        return iter(self._stores)

    def __len__(self) -> int:
        return len(self._stores)

    def filled(self, role: Role) -> dict[int, ParameterStore]:
        """Stores that hold something; an engine may know their addresses."""
        stores = self._stores.get(role, {})
        return {rank: store for rank, store in stores.items() if store.state != "empty"}

    def allocate(self, update: Sequence[RoleLoad]) -> None:
        """Give each load its stores: filled ones stay where they are, all hold the same ranks.

        Raises RuntimeError from torch if the memory is not there.
        """
        held = sorted({rank for one in update for rank in self.filled(one.role)})
        ranks = tuple(held) if held else self._choose(update)
        for one in update:
            if not self.filled(one.role):
                # let go of what a failed first load left, before as much again is asked for
                self._stores[one.role] = {}
                self._stores[one.role] = {rank: self._make(one, rank) for rank in ranks}
            one.stores = self._stores[one.role]

    def _make(self, one: RoleLoad, rank: int) -> ParameterStore:
        return ParameterStore(one.plan, rank, device=self._settings.device)

    def _choose(self, update: Sequence[RoleLoad]) -> tuple[int, ...]:
        """The ranks that fit with all their roles."""
        world = self._settings.layout.world
        sizes = {
            rank: sum(parameter_bytes(one.plan, rank) for one in update) for rank in range(world)
        }
        return choose_ranks(self._settings.ranks, sizes, available_bytes(self._settings.device))
