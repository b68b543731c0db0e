"""Pairs of one parameter: halves that wait for each other, inputs of one conversion."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from loadscope.loader.plan import Plan
from loadscope.loader.schema import Source
from loadscope.loader.steps import Piece, Step


@dataclass(slots=True)
class Half:
    """An owned copy of one source while it waits; the reader's buffer is reused meanwhile."""

    piece: Piece
    data: torch.Tensor
    missing: int

    @property
    def values(self) -> torch.Tensor:
        return self.data.reshape(self.piece.shape)


GroupKey = tuple[str, str, int]


class ConversionDesk:
    """Holds the inputs of conversions (an fp8 weight, its scale) until all of them are whole."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._held: dict[GroupKey, dict[str, Half]] = {}

    @property
    def waiting(self) -> list[str]:
        return [half.piece.tensor for group in self._held.values() for half in group.values()]

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is held."""
        halves = [half for group in self._held.values() for half in group.values()]
        return sum(half.data.numel() * half.data.element_size() for half in halves)

    def feed(
        self, param: str, piece: Piece, rows: tuple[int, int], values: torch.Tensor
    ) -> list[Half] | None:
        """Copy rows of one input; all inputs in the operation's order once the last is whole."""
        source = self._sources[piece.source]
        assert source.carrier is not None
        key = (param, source.carrier, piece.expert)
        group = self._held.setdefault(key, {})
        half = group.get(source.name)
        if half is None or half.missing == 0:
            # an input that comes again takes the place of the one that waits
            half = group[source.name] = _empty_half(piece, values)
        half.data[rows[0] : rows[1]] = values
        half.missing -= rows[1] - rows[0]
        ready = [group[name] for name in source.inputs if name in group and not group[name].missing]
        if len(ready) < len(source.inputs):
            return None
        del self._held[key]
        return ready


def _empty_half(piece: Piece, like: torch.Tensor) -> Half:
    first, last = piece.rows
    shape = (last - first, *piece.shape[1:])
    return Half(piece, torch.empty(shape, dtype=like.dtype, device=like.device), last - first)


@dataclass(slots=True)
class PairLedger:
    """Which halves of which pairs have been written on one rank; nothing may be left at the end."""

    plan: Plan
    open: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)

    def close(self, step: Step) -> list[tuple[str, str, str, bool]]:
        """What a finished step means for its pairs: (pair key, tensor, partner, is closed)."""
        changes = []
        for piece in step.pieces:
            source = self.plan.sources[piece.source]
            if source.pair is None:
                continue
            key = (step.param, min(source.name, source.pair))
            partner = _partner_name(piece.tensor, source)
            if key in self.open:
                del self.open[key]
                changes.append(("|".join(key), piece.tensor, partner, True))
            else:
                self.open[key] = (piece.tensor, partner)
                changes.append(("|".join(key), piece.tensor, partner, False))
        return _without_closed(changes)


def _without_closed(
    changes: list[tuple[str, str, str, bool]],
) -> list[tuple[str, str, str, bool]]:
    """A half that found its partner in the same step never waited."""
    closed = {key for key, _tensor, _partner, is_closed in changes if is_closed}
    return [change for change in changes if change[3] or change[0] not in closed]


def _partner_name(tensor: str, source: Source) -> str:
    """The partner's full name: the same layer, the pair's own tail."""
    assert source.pair is not None
    head = tensor.split(".")
    if "{layer}" not in source.pair:
        return source.pair
    return source.pair.replace("{layer}", head[head.index("layers") + 1])
