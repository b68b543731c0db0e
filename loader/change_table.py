"""How much an update changed: numbers of single parameters added up by layer, module and kind."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from loadscope.loader.schema import Target
from loadscope.loader.topology import Seat
from loadscope.loader.views import ParameterView

Kind = Literal[
    "embedding", "mla", "indexer", "router", "experts", "shared_experts", "mlp", "norm", "head",
    "other",
]  # fmt: skip
Key = tuple[object, ...]
# by the beginning of a module's label; norms and the rest are told apart in `kind_of`
PLACES: dict[str, Kind] = {
    "attn.indexer.": "indexer",
    "attn.": "mla",
    "experts.": "experts",
    "shared.": "shared_experts",
    "router": "router",
    "mlp.": "mlp",
    "embed_tokens": "embedding",
    "lm_head": "head",
}


def kind_of(module: str) -> Kind:
    """The kind of a column of the heat map (`Target.module`). A norm is one wherever it stands."""
    if module.removesuffix(".bias").endswith("norm"):
        return "norm"
    return next((kind for place, kind in PLACES.items() if module.startswith(place)), "other")


class Piece(NamedTuple):
    """What a seat holds of a parameter, or a part of that; seats with the same key hold the same.

    `place`: where it lies in the seat's tensor; () is all of it.
    """

    key: Key
    place: tuple[slice, ...]


def pieces(target: Target, seat: Seat, shape: tuple[int, ...]) -> list[Piece]:
    """All of a parameter of a seat; the key is the seat's index on every axis that cuts it.

    Elements that such an axis does not cut (fused shared experts behind the routed ones) are a
    piece of their own, whose key lacks that axis.
    """
    place = [(split.axis, seat.index(split.axis)) for split in target.splits]
    kept = next((split for split in target.splits if split.kept), None)
    if kept is None:
        return [Piece(tuple(place), ())]
    before, cut = (slice(None),) * kept.dim, shape[kept.dim] - kept.kept
    rest = tuple(one for one in place if one[0] != kept.axis)
    return [
        Piece(tuple(place), (*before, slice(0, cut))),
        Piece(("kept", *rest), (*before, slice(cut, None))),
    ]


def is_packed(target: Target) -> bool:
    """Whether a stored element is several of the weight's: two int4 in a byte."""
    return target.role == "weight" and max(target.per, default=1) > 1


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one tensor. Two elements are unequal if their bits are: 0.0 is not -0.0.

    `max_abs` and `sum_squares` are of new - old, over elements that are finite in both;
    `old_sum_squares` of the finite old elements. All three are None for codes, whose difference
    means nothing. `nan` and `inf` count new elements, `nan_before` and `inf_before` old ones.
    """

    elements: int
    changed: int
    max_abs: float | None
    sum_squares: float | None
    old_sum_squares: float | None
    nan: int
    inf: int
    nan_before: int
    inf_before: int

    @property
    def is_broken(self) -> bool:
        """Whether there is NaN, or Inf, where there was none."""
        has_new_nan = self.nan > 0 and not self.nan_before
        return has_new_nan or (self.inf > 0 and not self.inf_before)


@dataclass(slots=True)
class Sum:
    """Changes added up. `names`: parameters with any change, each once, however many ranks."""

    names: set[Key] = field(default_factory=set)
    elements: int = 0
    changed: int = 0
    nan: int = 0
    inf: int = 0
    _measured: int = 0
    _max_abs: float = 0.0
    _sum_squares: float = 0.0
    _old_sum_squares: float = 0.0

    def add(self, name: Key, change: Change) -> None:
        if change.changed:
            self.names.add(name)
        self.elements += change.elements
        self.changed += change.changed
        self.nan += change.nan
        self.inf += change.inf
        if change.max_abs is None or change.sum_squares is None or change.old_sum_squares is None:
            return
        self._measured += change.elements
        self._max_abs = max(self._max_abs, change.max_abs)
        self._sum_squares += change.sum_squares
        self._old_sum_squares += change.old_sum_squares

    @property
    def parameters_changed(self) -> int:
        return len(self.names)

    @property
    def max_abs(self) -> float | None:
        """None where there are only codes."""
        return self._max_abs if self._measured else None

    @property
    def rms(self) -> float | None:
        """Of the difference, over all elements that are no codes; None where there are none."""
        return math.sqrt(self._sum_squares / self._measured) if self._measured else None

    @property
    def relative(self) -> float | None:
        """Size of the difference over that of the old values; None where these were all zero."""
        if not self._old_sum_squares:
            return None
        return math.sqrt(self._sum_squares / self._old_sum_squares)

    def as_json(self) -> dict[str, Any]:
        """`tensors_changed` counts parameters, as everything here does."""
        return {
            "tensors_changed": self.parameters_changed,
            "elements": self.elements,
            "elements_changed": self.changed,
            "elements_changed_pct": 100 * self.changed / self.elements if self.elements else 0.0,
            "max_abs": self.max_abs,
            "rms": self.rms,
            "nan": self.nan,
            "inf": self.inf,
        }


class ChangeTable:
    """Sums over all parameters that were compared: in total, by kind, by layer, by cell."""

    def __init__(self) -> None:
        self.total = Sum()
        self.kinds: dict[Kind, Sum] = {}
        self.layers: dict[int | None, Sum] = {}
        self.cells: dict[tuple[int | None, str, str], Sum] = {}
        self._claimed: set[Key] = set()

    def claim(self, role: str, name: str, piece: Key) -> bool:
        """True the first time that anybody asks for this piece of a parameter.

        Ranks that hold the same piece hold the same values: the first of them is counted.
        """
        key = (role, name, piece)
        is_first = key not in self._claimed
        self._claimed.add(key)
        return is_first

    def add(self, role: str, view: ParameterView, change: Change) -> None:
        """Count a change of a parameter, or of a piece of it."""
        name, layer, kind = (role, view.name), view.layer, kind_of(view.module)
        for total in (
            self.total,
            self.kinds.setdefault(kind, Sum()),
            self.layers.setdefault(layer, Sum()),
            self.cells.setdefault((layer, view.module, role), Sum()),
        ):
            total.add(name, change)

    def as_json(self) -> dict[str, Any]:
        """Totals, `by_kind`, `by_layer` ("top" outside the layers, first) and sorted `cells`."""
        layers = sorted(self.layers, key=_row)
        cells = sorted(self.cells, key=lambda cell: (_row(cell[0]), *cell[1:]))
        return {
            **self.total.as_json(),
            "by_kind": {kind: self.kinds[kind].as_json() for kind in sorted(self.kinds)},
            "by_layer": {_label(layer): self.layers[layer].as_json() for layer in layers},
            "cells": [_cell(place, self.cells[place]) for place in cells],
        }


def _row(layer: int | None) -> int:
    return -1 if layer is None else layer


def _label(layer: int | None) -> str:
    return "top" if layer is None else str(layer)


def _cell(place: tuple[int | None, str, str], total: Sum) -> dict[str, Any]:
    layer, module, role = place
    return {
        "layer": _label(layer),
        "module": module,
        "role": role,
        "elements": total.elements,
        "changed": total.changed,
        "rms": total.rms,
        "relative": total.relative,
        "max_abs": total.max_abs,
        "nan": total.nan,
        "inf": total.inf,
    }
