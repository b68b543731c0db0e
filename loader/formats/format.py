"""What a config's quantisation means for each module: schemes, who gets which, and why."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from loadscope.loader.formats.entries import Entries
from loadscope.loader.tables import Leaf, Scheme

ModuleKind = Literal["any", "expert", "linear"]
NO_ENTRY = "no exclude entry matched"
UNCOVERED = "no entry of the quantisation config covers it"


@dataclass(frozen=True, slots=True)
class Row:
    """Modules of one kind, of one include list if there is one, get this scheme."""

    scheme: Scheme
    kind: ModuleKind = "any"
    included: Entries | None = None
    entry: str = NO_ENTRY

    def takes(self, modules: Sequence[str], is_expert: bool) -> str | None:
        """The entry by which the modules belong here; None if they do not."""
        if self.kind != "any" and (self.kind == "expert") != is_expert:
            return None
        if self.included is None:
            return self.entry
        found = self.included.find_any(modules)
        return None if found is None else f"{self.included.field} entry {found!r}"


@dataclass(frozen=True, slots=True)
class Assigned:
    """The scheme of some modules, and the config entry or the default that decided it."""

    scheme: Scheme
    entry: str


@dataclass(frozen=True, slots=True)
class Format:
    """A model's quantisation: the first row that takes a module decides, after the exclude list.

    Forced rows come from the command line and stand before the exclude list.
    """

    name: str
    method: str
    plain: Scheme
    rows: tuple[Row, ...] = ()
    forced: tuple[Row, ...] = ()
    excluded: Entries = field(default_factory=lambda: Entries((), ""))
    has_kv_scales: bool = False
    config_entry: str = ""

    @property
    def lists(self) -> tuple[Entries, ...]:
        """Every list of module names in the config."""
        included = [row.included for row in self.rows if row.included is not None]
        return tuple(entries for entries in (*included, self.excluded) if entries.texts)

    def force(self, modules: Sequence[str], is_expert: bool) -> Assigned | None:
        """The scheme that the command line asks for."""
        return _first(self.forced, modules, is_expert)

    def excludes(self, module: str) -> str | None:
        """The exclude entry that means this module."""
        return self.excluded.find(module) if self.excluded.texts else None

    def assign(self, modules: Sequence[str], is_expert: bool) -> Assigned:
        """The scheme of modules that are not excluded."""
        return _first(self.rows, modules, is_expert) or Assigned(self.plain, UNCOVERED)


def _first(rows: Sequence[Row], modules: Sequence[str], is_expert: bool) -> Assigned | None:
    for row in rows:
        entry = row.takes(modules, is_expert)
        if entry is not None:
            return Assigned(row.scheme, entry)
    return None


def plain_scheme(dtype: str) -> Scheme:
    """No quantisation: one tensor per weight, in the model's dtype."""
    return Scheme(f"none ({dtype})", (Leaf("weight", dtype),), kv_b="plain")
