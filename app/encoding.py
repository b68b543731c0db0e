"""JSON in and out: orjson where it is installed, the standard library otherwise."""

import json
from collections.abc import Mapping
from typing import Any

try:
    import orjson
except ModuleNotFoundError:
    HAS_ORJSON = False
else:
    HAS_ORJSON = True


def _plain(value: object) -> object:
    # orjson refuses named tuples and read-only mappings
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, frozenset | set):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _dumps_standard(value: object) -> bytes:
    return json.dumps(value, default=_plain, separators=(",", ":"), ensure_ascii=False).encode()


def dumps(value: object) -> bytes:
    """Compact UTF-8 JSON; tuples become lists and keys become text."""
    if not HAS_ORJSON:
        return _dumps_standard(value)
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS)


def loads(text: bytes) -> Any:
    return orjson.loads(text) if HAS_ORJSON else json.loads(text)
