"""Stored rows into parameter slices: copies, and conversions once their inputs are whole."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from loadscope.loader.convert import SMALL, convert, scales_differ
from loadscope.loader.copies import copy_into
from loadscope.loader.findings import Finding, finding
from loadscope.loader.fuse import ConversionDesk, Half
from loadscope.loader.kernel_time import KernelTime
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.place import Box
from loadscope.loader.schema import Source
from loadscope.loader.steps import Piece


@dataclass(frozen=True, slots=True)
class Written:
    """Elements written by some rows, and the conversion that they completed."""

    elements: int
    kernel: KernelTime | None = None


class Writer:
    """Writes one rank's slices; holds what a conversion waits for."""

    def __init__(self, sources: Sequence[Source], store: ParameterStore) -> None:
        self._sources = sources
        self._store = store
        self._desk = ConversionDesk(sources)
        self._unequal: dict[str, list[str]] = {}

    @property
    def waiting(self) -> list[str]:
        """Names of tensors that are held until their partners come."""
        return self._desk.waiting

    @property
    def held_bytes(self) -> int:
        return self._desk.nbytes

    def write(self, param: str, piece: Piece, rows: tuple[int, int], data: torch.Tensor) -> Written:
        """Rows [rows[1] - rows[0], …] of a piece; what is held is copied."""
        target = self._store.parameters[param]
        if self._sources[piece.source].convert is not None:
            return self._convert(param, piece, rows, data, target)
        first = rows[0] - piece.rows[0]
        return Written(_copy_rows(piece, data, target, first, rows[1] - rows[0]))

    def _convert(
        self,
        param: str,
        piece: Piece,
        rows: tuple[int, int],
        data: torch.Tensor,
        target: torch.Tensor,
    ) -> Written:
        inputs = self._desk.feed(param, piece, rows, data)
        if inputs is None:
            return Written(0)
        begun = time.perf_counter()
        carrier = self._carrier(inputs)
        source = self._sources[carrier.source]
        values = [half.values for half in inputs]
        self._compare(source, carrier, values, target)
        done = convert(source, values, target)
        place = box_of(target, carrier.target_box)
        place.copy_(box_of(done.values, carrier.source_box).reshape(place.shape))
        seconds = time.perf_counter() - begun
        kernel = KernelTime(
            str(source.convert), param, tuple(done.values.shape), done.nbytes, seconds
        )
        return Written(place.numel(), None if source.convert in SMALL else kernel)

    def _carrier(self, inputs: Sequence[Half]) -> Piece:
        """The input whose piece says where the result goes."""
        return next(half.piece for half in inputs if not self._sources[half.piece.source].feeds)

    def _compare(
        self, source: Source, carrier: Piece, values: list[torch.Tensor], target: torch.Tensor
    ) -> None:
        if scales_differ(source, values, target.dtype):
            self._unequal.setdefault(source.name, []).append(carrier.tensor)

    @property
    def remarks(self) -> list[Finding]:
        """What only the values could show, grouped by pattern."""
        return [_unequal_scales(pattern, names) for pattern, names in self._unequal.items()]


def _unequal_scales(pattern: str, names: list[str]) -> Finding:
    return finding(
        "LS603",
        names[0],
        f"{names[0]} and the scale that shares its place differ: the greater is used",
        fix="nothing to do if the accuracy is right; a quantiser should give both one scale",
        pattern=pattern,
        count=len(names),
        example=names[0],
        evidence={"names": names[:5]},
    )


def box_of(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    """The elements of a box, as a view."""
    return tensor[tuple(slice(a, b) for a, b in box)] if box else tensor


def _copy_rows(
    piece: Piece, rows: torch.Tensor, target: torch.Tensor, first: int, count: int
) -> int:
    """Copy rows of a slice to their place; returns the elements written."""
    if not piece.source_box:
        place = box_of(target, piece.target_box)
        place.copy_(rows.reshape(place.shape))
        return place.numel()
    columns = tuple(slice(a, b) for a, b in piece.source_box[1:])
    part = rows[(slice(None), *columns)]
    lead = len(piece.target_box) - len(piece.source_box)
    box = list(piece.target_box)
    start = box[lead][0] + first
    box[lead] = (start, start + count)
    place = box_of(target, tuple(box))
    copy_into(place, part.reshape(place.shape) if lead else part)
    return place.numel()
