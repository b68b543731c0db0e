"""Why a load did not start."""

from collections.abc import Sequence

from loadscope.app.roles import Role
from loadscope.loader.findings import Finding


class Busy(RuntimeError):
    """Another load is running; `load` is its id."""

    def __init__(self, load: int | None) -> None:
        named = "another load is being prepared" if load is None else f"load {load} is running"
        super().__init__(f"{named}; wait until it has finished")
        self.load = load


class Refused(ValueError):
    """Refused before a byte was read: what was loaded before stays as it was.

    `load` and `role` are those whose plan, or checkpoint, was at fault.
    """

    def __init__(
        self, load: int, message: str, findings: Sequence[Finding] = (), role: Role = "target"
    ) -> None:
        super().__init__(message)
        self.load, self.findings, self.role = load, tuple(findings), role
