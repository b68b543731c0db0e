"""Are derived tensors made from what stands there now, and all tensors where they always were."""

import re
from collections.abc import Mapping
from typing import TypedDict

from loadscope.loader.findings import Finding, finding
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.stamps import Stamp

MAX_NAMES = 20
_LAYER = re.compile(r"(?<=\.layers\.)\d+(?=\.)")


class Written(TypedDict):
    """One write: its version, if that has a name, and the store's epoch while it went on."""

    version: str | None
    epoch: int


class Lineage(TypedDict):
    """What a derived tensor was made from, by parameter, and whether that has changed since."""

    inputs: dict[str, Written]
    is_stale: bool


def check_freshness(store: ParameterStore) -> list[Finding]:
    """Stale derived tensors (LS701) and tensors that have moved (LS702), one finding a pattern."""
    return [*_stale(store), *_moved(store)]


def lineage(store: ParameterStore, derived_name: str) -> Lineage:
    """The writes that a derived tensor was made from. Raises ValueError if it is not there."""
    inputs = store.stamps.inputs.get(derived_name)
    if inputs is None:
        made = sorted(store.stamps.inputs)
        others = f"it has {made[0]} and {len(made) - 1:,} more" if made else "nor any other"
        raise ValueError(f"rank {store.rank} has no derived tensor {derived_name}; {others}")
    return {
        "inputs": {name: _written(stamp) for name, stamp in inputs.items()},
        "is_stale": derived_name in store.stamps.stale(),
    }


def _written(stamp: Stamp) -> Written:
    return {"version": stamp.version, "epoch": stamp.epoch}


def _stale(store: ParameterStore) -> list[Finding]:
    stale = store.stamps.stale()
    return [
        _stale_finding(store, pattern, names, stale[names[0]])
        for pattern, names in _by_pattern(stale).items()
    ]


def _stale_finding(
    store: ParameterStore, pattern: str, names: list[str], newer: list[str]
) -> Finding:
    example, param = names[0], newer[0]
    made = store.stamps.inputs[example]
    then, now = _told(made[param], store.stamps.last(param))
    evidence = {
        one: {"made_from": _written(made[one]), "now": _written(store.stamps.last(one))}
        for one in newer
    }
    return finding(
        "LS701",
        example,
        f"{example} was made from {param} of {then}, which holds {now} now",
        fix="reload; if it comes back, report it: derived tensors are refreshed whenever an input "
        "is written",
        pattern=pattern,
        count=len(names),
        example=example,
        evidence={"rank": store.rank, "inputs": evidence, "names": names[:MAX_NAMES]},
    )


def _told(then: Stamp, now: Stamp) -> tuple[str, str]:
    """Two writes in words that differ: versions, or epochs where those are equal or unnamed."""
    if None in (then.version, now.version) or then.version == now.version:
        return f"epoch {then.epoch}", f"epoch {now.epoch}"
    return f"version {then.version}", str(now.version)


def _moved(store: ParameterStore) -> list[Finding]:
    tensors = {**store.parameters, **store.derived}
    now = {name: tensors[name].data_ptr() if name in tensors else None for name in store.addresses}
    moved = {name: None for name, first in store.addresses.items() if now[name] != first}
    return [
        _moved_finding(store, pattern, names, now[names[0]])
        for pattern, names in _by_pattern(moved).items()
    ]


def _moved_finding(
    store: ParameterStore, pattern: str, names: list[str], now: int | None
) -> Finding:
    example = names[0]
    first = store.addresses[example]
    to = "is gone" if now is None else f"moved from {first:#x} to {now:#x}"
    return finding(
        "LS702",
        example,
        f"{example} {to}",
        fix="whoever replaced the tensor must write into it instead; then restart the engine, or "
        "capture its graphs again",
        pattern=pattern,
        count=len(names),
        example=example,
        evidence={"rank": store.rank, "first": first, "now": now, "names": names[:MAX_NAMES]},
    )


def _by_pattern(names: Mapping[str, object]) -> dict[str, list[str]]:
    """Names that differ in the layer alone, together."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(_LAYER.sub("{layer}", name), []).append(name)
    return found
