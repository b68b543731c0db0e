"""One update while it is worked on: what was asked, what is known, its loads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from loadscope.app.updates.asked import Asked
from loadscope.app.updates.audit import Who
from loadscope.app.updates.receiving import Receiving
from loadscope.app.updates.record import Record
from loadscope.app.updates.refusal import Refusal
from loadscope.app.updates.role_loads import RoleLoad
from loadscope.loader.checkpoint import Checkpoint
from loadscope.loader.control import Control
from loadscope.loader.keeper import Choice
from loadscope.loader.writing import Writing


class Watched(Control):
    """A control that also tells how many bytes have passed, once they have."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = 0
        self.on_moved: Callable[[int], None] | None = None

    def gate(self, nbytes: int) -> None:
        super().gate(nbytes)
        self.moved += nbytes
        if self.on_moved is not None:
            self.on_moved(self.moved)


@dataclass(slots=True)
class Update:
    """`who` asked for it. `files`: indices of the shards that it reads; None: all of them.

    `checksums`: of what the files hold, by name, once their bytes were read. `stopped`: why it was
    asked to end early.
    """

    asked: Asked
    record: Record
    control: Watched = field(default_factory=Watched)
    loads: list[RoleLoad] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    files: frozenset[int] | None = None
    receiving: Receiving | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    committed: bool = False
    choice: Choice | None = None
    stopped: Refusal | None = None
    who: Who = field(default_factory=Who)

    @property
    def writing(self) -> Writing:
        return Writing(self.record.version, files=self.files)
