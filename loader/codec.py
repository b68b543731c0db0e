"""A plan to bytes and back: an old load is explained by the plan it ran, not by today's rules."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from loadscope.loader.checkpoint import Shard, Tensor
from loadscope.loader.dtypes import ITEM_BYTES
from loadscope.loader.findings import Finding
from loadscope.loader.model import Model
from loadscope.loader.place import Placement
from loadscope.loader.plan import Options, Plan
from loadscope.loader.resolve import Tail
from loadscope.loader.schema import Source, Target
from loadscope.loader.tables import Derive, Fill, Output, Part, Split
from loadscope.loader.topology import Layout

VERSION = 2


def to_bytes(plan: Plan) -> bytes:
    """zlib of one JSON document; V3's 91,991 tensors take about half a megabyte."""
    document = {
        "version": VERSION,
        "digest": plan.digest,
        "label": plan.label,
        "kind": plan.kind,
        "shards": [[s.name, s.size, s.data_start] for s in plan.shards],
        "tensors": _pack_tensors(plan),
        "layout": asdict(plan.layout),
        "options": asdict(plan.options),
        "model": asdict(plan.model) if plan.model is not None else None,
        "format": plan.format,
        "targets": [asdict(t) for t in plan.targets],
        "sources": [asdict(s) for s in plan.sources],
        "derives": [asdict(d) for d in plan.derives],
        "tails": [_pack_tail(t) for t in plan.tails],
        "shapes": plan.shapes,
        "placements": [[*key, *placed] for key, placed in plan.placements.items()],
        "zero_boxes": [[*key, box] for key, box in plan.zero_boxes.items()],
        "findings": [f.as_json() for f in plan.findings],
        "seconds": dict(plan.seconds),
    }
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 1)


def _pack_tail(tail: Tail) -> list[Any]:
    shapes = [[list(shape), hex(mask)] for shape, mask in tail.shapes.items()]
    masks = [hex(m) for m in (tail.seen, tail.routed, tail.failed, tail.beyond)]
    head = [tail.wrapper, tail.text, tail.is_top, tail.dtype, tail.source, tail.expert]
    return [*head, masks, shapes, tail.respelled]


def _pack_tensors(plan: Plan) -> list[list[list[int]]]:
    """Per file: tail numbers, layers, starts, in the plan's order; sizes follow from the shapes."""
    numbers = {id(tail): i for i, tail in enumerate(plan.tails)}
    files: list[list[list[int]]] = [[[], [], []] for _ in plan.shards]
    for name, tensor in plan.tensors.items():
        place = plan.find(name)
        assert place is not None
        tails, layers, starts = files[tensor.file]
        tails.append(numbers[id(place[0])])
        layers.append(place[1])
        starts.append(tensor.start)
    return files


def from_bytes(data: bytes) -> Plan:
    """The plan as it was; ValueError for another version of the format."""
    document = json.loads(zlib.decompress(data))
    if document["version"] != VERSION:
        raise ValueError(f"stored plan has version {document['version']}; expected {VERSION}")
    tails = tuple(_unpack_tail(row) for row in document["tails"])
    plan = Plan(
        label=document["label"],
        kind=document["kind"],
        shards=tuple(Shard(*row) for row in document["shards"]),
        tensors=_unpack_tensors(document["tensors"], tails),
        layout=Layout(**document["layout"]),
        options=_options(document["options"]),
        model=_model(document["model"]),
        format=document["format"],
        targets=tuple(_target(row) for row in document["targets"]),
        sources=tuple(_source(row) for row in document["sources"]),
        derives=tuple(_derive(row) for row in document["derives"]),
        tails=tails,
        shapes=tuple(tuple(shape) for shape in document["shapes"]),
        placements={(row[0], row[1]): _placement(row[2:]) for row in document["placements"]},
        zero_boxes={(row[0], row[1]): _box(row[2]) for row in document["zero_boxes"]},
        findings=tuple(Finding(**row) for row in document["findings"]),
        seconds=document["seconds"],
    )
    # the digest of the day it was made: today's code may hash otherwise
    plan.__dict__["digest"] = document["digest"]
    return plan


def _unpack_tail(row: list[Any]) -> Tail:
    wrapper, text, is_top, dtype, source, expert, masks, shapes, respelled = row
    seen, routed, failed, beyond = (int(mask, 16) for mask in masks)
    sizes = {tuple(shape): int(mask, 16) for shape, mask in shapes}
    return Tail(
        wrapper, text, is_top, dtype, source, expert, seen, routed, failed, beyond, sizes, respelled
    )  # fmt: skip


def _unpack_tensors(files: list[list[list[int]]], tails: tuple[Tail, ...]) -> dict[str, Tensor]:
    tensors = {}
    for number, (indices, layers, starts) in enumerate(files):
        for index, layer, start in zip(indices, layers, starts, strict=True):
            tail = tails[index]
            shape = tail.shape(layer)
            size = ITEM_BYTES.get(tail.dtype, 0)
            for n in shape:
                size *= n
            tensors[tail.name(layer)] = Tensor(tail.dtype, shape, number, start, start + size)
    return tensors


T = TypeVar("T")


def _plain(cls: type[T], row: Mapping[str, Any]) -> dict[str, Any]:
    """Lists back to tuples, which is what the dataclasses hold."""
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    return {k: tuple(v) if isinstance(v, list) else v for k, v in row.items() if k in known}


def _box(rows: list[list[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((a, b) for a, b in rows)


def _placement(row: list[Any]) -> Placement:
    return Placement(_box(row[0]), _box(row[1]), *row[2:])


def _options(row: dict[str, Any]) -> Options:
    pairs = tuple((field, text) for field, text in row.pop("overrides"))
    return Options(**row, overrides=pairs)


def _model(row: dict[str, Any] | None) -> Model | None:
    return None if row is None else Model(**_plain(Model, row))


def _target(row: dict[str, Any]) -> Target:
    values = _plain(Target, row)
    values["splits"] = tuple(Split(**split) for split in row["splits"])
    values["parts"] = tuple(Part(**part) for part in row["parts"])
    values["fill"] = Fill(**row["fill"])
    return Target(**values)


def _source(row: dict[str, Any]) -> Source:
    return Source(**_plain(Source, row))


def _derive(row: dict[str, Any]) -> Derive:
    values = _plain(Derive, row)
    values["outputs"] = tuple(Output(**_plain(Output, output)) for output in row["outputs"])
    values["scalars"] = tuple((name, value) for name, value in row["scalars"])
    values["flags"] = tuple((name, value) for name, value in row["flags"])
    return Derive(**values)
