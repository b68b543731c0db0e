"""Why a load did not start."""

from collections.abc import Sequence

from loadscope.loader.findings import Finding


class Busy(RuntimeError):
    """Another load is running; `load` is its id."""

    def __init__(self, load: int | None) -> None:
        named = "another load is being prepared" if load is None else f"load {load} is running"
        super().__init__(f"{named}; wait until it has finished")
        self.load = load


class Refused(ValueError):
    """Refused before a byte was read: what was loaded before stays as it was."""

    def __init__(self, load: int, message: str, findings: Sequence[Finding] = ()) -> None:
        super().__init__(message)
        self.load, self.findings = load, tuple(findings)
