"""What a process holds and serves right now; the update that changes it shares it with readers."""

from dataclasses import dataclass, field
from typing import Any

from loadscope.app.role_stores import RoleStores
from loadscope.app.roles import Role
from loadscope.loader.checkpoint import Checkpoint
from loadscope.loader.parameters import state_of
from loadscope.loader.plan import Plan
from loadscope.loader.state import worst_store


@dataclass(frozen=True, slots=True)
class Served:
    """The version of one role, and the update that brought it."""

    version: str
    update: int


@dataclass(frozen=True, slots=True)
class Base:
    """Where the weights come from: headers to compare an update with, versions by role."""

    checkpoint: Checkpoint | None = None
    plans: dict[Role, Plan] = field(default_factory=dict)
    served: dict[Role, Served] = field(default_factory=dict)

    @property
    def newest(self) -> Served | None:
        """Of the roles, the one that was written last."""
        return max(self.served.values(), key=lambda one: one.update, default=None)


@dataclass(slots=True)
class Standing:
    """`before` is the base that a rollback returns to; `running` the load that runs."""

    stores: RoleStores
    base: Base = field(default_factory=Base)
    before: Base = field(default_factory=Base)
    running: int | None = None
    is_writing: bool = False
    # why there is nothing to read yet, in words
    outcome: str | None = None

    @property
    def state(self) -> str:
        """Of all roles together: the worst of them counts."""
        if self.is_writing:
            return "writing"
        return worst_store(state_of(stores)["state"] for stores in self.stores.values())

    def roles_json(self) -> dict[str, Any]:
        return {
            role: {
                "version": self.base.served[role].version if role in self.base.served else None,
                "state": state_of(stores)["state"],
            }
            for role, stores in self.stores.items()
        }
