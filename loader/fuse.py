"""Pairs of one parameter: halves that wait for each other, sources converted on their way."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from loadscope.kernels.dequantise_block import dequantise_block
from loadscope.loader.plan import Plan
from loadscope.loader.schema import Source
from loadscope.loader.steps import Piece, Step


@dataclass(slots=True)
class Half:
    """An owned copy of one source while it waits; the reader's buffer is reused meanwhile."""

    piece: Piece
    data: torch.Tensor
    missing: int


Convert = Callable[[torch.Tensor, torch.Tensor, tuple[int, int], torch.dtype], torch.Tensor]

CONVERSIONS: dict[str, Convert] = {"dequantise_block": dequantise_block}


@dataclass(slots=True)
class Converted:
    """A finished conversion: the values, the weight they come from, the operation's name."""

    values: torch.Tensor
    weight: Piece
    operation: str


class ConversionDesk:
    """Holds the halves of converted sources (fp8 weight, its scale) until both are whole."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._held: dict[tuple[str, bool], Half] = {}

    @property
    def waiting(self) -> list[str]:
        return [half.piece.tensor for half in self._held.values()]

    def feed(
        self, param: str, piece: Piece, rows: tuple[int, int], values: torch.Tensor
    ) -> tuple[Half, Half] | None:
        """Copy rows of one half; both halves (weight, scale) once the second is whole."""
        is_scale = self._plan.sources[piece.source].is_input
        key = (param, is_scale)
        half = self._held.get(key)
        if half is None:
            empty = torch.empty(piece.shape, dtype=values.dtype)
            half = self._held[key] = Half(piece, empty, piece.rows[1] - piece.rows[0])
        half.data[rows[0] : rows[1]] = values
        half.missing -= rows[1] - rows[0]
        weight, scale = self._held.get((param, False)), self._held.get((param, True))
        if weight is None or scale is None or weight.missing or scale.missing:
            return None
        del self._held[(param, False)], self._held[(param, True)]
        return weight, scale

    def convert(self, weight: Half, scale: Half, target: torch.Tensor) -> Converted:
        """Values of the weight in the target's dtype, on the target's device."""
        source = self._plan.sources[weight.piece.source]
        block = self._plan.sources[scale.piece.source].block
        assert source.convert is not None
        values = CONVERSIONS[source.convert](
            weight.data.to(target.device), scale.data.to(target.device), block, target.dtype
        )
        return Converted(values, weight.piece, source.convert)


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
