"""Which version and epoch wrote each tensor, and what derived tensors were made from."""

from dataclasses import dataclass, field
from typing import NamedTuple


class Stamp(NamedTuple):
    """One write of one rank: the version it brought, if it has a name, and its odd epoch."""

    version: str | None
    epoch: int


NEVER = Stamp(None, 0)


@dataclass(slots=True)
class Stamps:
    """`written`: last write by tensor name. `inputs`: by derived name, each input's write then."""

    written: dict[str, Stamp] = field(default_factory=dict)
    inputs: dict[str, dict[str, Stamp]] = field(default_factory=dict)

    def derive(self, name: str, inputs: list[str]) -> None:
        """A derived tensor was made from these parameters as they stand."""
        self.inputs[name] = {one: self.last(one) for one in inputs}

    def last(self, name: str) -> Stamp:
        """The last write of a tensor; `NEVER` if no load or update has written it."""
        return self.written.get(name, NEVER)

    def stale(self) -> dict[str, list[str]]:
        """Derived tensors with the inputs that were written after they were made."""
        found = {
            name: [one for one, stamp in inputs.items() if self.last(one) != stamp]
            for name, inputs in self.inputs.items()
        }
        return {name: inputs for name, inputs in found.items() if inputs}

    def copy(self) -> "Stamps":
        return Stamps(dict(self.written), {name: dict(i) for name, i in self.inputs.items()})
