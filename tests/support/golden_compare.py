"""A load against its record, fact by fact: every deviation as a value."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from support.golden_events import (
    expected_destinations,
    expected_outcome,
    made_names,
    unknown_patterns,
)
from support.golden_records import Record, variant_of
from support.names import pattern_of

Found = Mapping[str, Any]
LAYOUT = ("shape", "stride", "dtype")


@dataclass(frozen=True, slots=True)
class Deviation:
    """One fact in which a load is not as recorded; `name` is a parameter's or a tensor's."""

    record: str
    fact: str
    name: str
    recorded: Any
    found: Any


def deviations(record: Record, found: Found) -> list[Deviation]:
    """All of them; a load that was refused has one."""
    if found["refused"]:
        return [Deviation(record["id"], "refused", "", False, True)]
    pairs = [
        pair
        for compare in (_parameters, _derived, _scalars, _flags, _outcomes, _destinations, _found)
        for pair in compare(record, found)
    ]
    return [Deviation(record["id"], *pair) for pair in pairs if pair[2] != pair[3]]


Pair = tuple[str, str, Any, Any]


def _parameters(record: Record, found: Found) -> Iterator[Pair]:
    recorded, held = record["params"], found["params"]
    for name in sorted({*recorded, *held}):
        yield "parameter", name, name in recorded, name in held
        if name in recorded and name in held:
            yield from _parameter(name, recorded[name], held[name])


def _parameter(name: str, recorded: Found, held: Found) -> Iterator[Pair]:
    for fact in LAYOUT:
        yield fact, name, recorded[fact], held[fact]
    yield "unwritten", name, recorded["unwritten"], held["numel"] - held["written"]
    if recorded["unwritten"]:
        yield "fill", name, "initial", held["fill"]
        return
    yield "sha256", name, recorded["sha256"], held["sha256"]
    if "after_post" in recorded:
        yield "after_post", name, recorded["after_post"]["sha256"], held["sha256"]


def _derived(record: Record, found: Found) -> Iterator[Pair]:
    recorded = _values(record, lambda value: isinstance(value, dict))
    for name in sorted({*recorded, *found["derived"]}):
        yield "derived", name, recorded.get(name), found["derived"].get(name)


def _scalars(record: Record, found: Found) -> Iterator[Pair]:
    recorded = _values(record, lambda value: isinstance(value, float))
    for name in sorted({*recorded, *found["scalars"]}):
        yield "scalar", name, recorded.get(name), found["scalars"].get(name)


def _flags(record: Record, found: Found) -> Iterator[Pair]:
    recorded = _values(record, lambda value: isinstance(value, bool))
    for name in sorted({*recorded, *found["flags"]}):
        yield "flag", name, recorded.get(name), found["flags"].get(name)


def _values(record: Record, belongs: Any) -> dict[str, Any]:
    return {
        f"{module}.{name}": value
        for module, values in record["derived"].items()
        for name, value in values.items()
        if belongs(value)
    }


def _outcomes(record: Record, found: Found) -> Iterator[Pair]:
    names = set(record["outcomes"]) - made_names(record)
    for name in sorted(names | set(found["tensors"])):
        row = found["tensors"].get(name)
        recorded = expected_outcome(record, name) if name in names else None
        yield "outcome", name, recorded, row and (row["outcome"], row["reason"])


def _destinations(record: Record, found: Found) -> Iterator[Pair]:
    for name in sorted(set(record["outcomes"]) & set(found["tensors"])):
        held = found["tensors"][name]["destinations"]
        yield "destination", name, expected_destinations(record, name), held


def _found(record: Record, found: Found) -> Iterator[Pair]:
    """Warnings and errors; a warning about a name that the reference warns about is its own."""
    for finding in found["findings"]:
        is_shared = pattern_of(finding["example"] or "") in unknown_patterns(variant_of(record))
        if finding["level"] != "note" and not (finding["code"] == "LS301" and is_shared):
            yield "finding", f"{finding['code']} {finding['subject']}", None, finding["level"]
