"""Bytes to a JSON object, with every way in which a file can lie about it named."""

import json
from collections import Counter
from typing import Any, NoReturn


class UnusableJson(ValueError):
    """What is wrong with the text; never quotes more of it than a position."""


def parse_object(raw: bytes) -> dict[str, Any]:
    """The object, by the fast path: of two equal keys the last one wins silently."""
    return _as_object(_guarded(raw, _fast))


def parse_object_and_duplicates(raw: bytes) -> tuple[dict[str, Any], list[str]]:
    """The object and the keys that stand twice anywhere in it (at most 100 of them)."""
    duplicates: list[str] = []

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(pairs)
        if len(built) != len(pairs) and len(duplicates) < 100:
            duplicates.extend(_repeated(pairs))
        return built

    hooked = json.JSONDecoder(object_pairs_hook=build, parse_constant=_refuse_constant)
    parsed = _as_object(_guarded(raw, hooked))
    if b"\\u" in raw:
        _refuse_lone_surrogates(parsed)
    return parsed, duplicates[:100]


def _repeated(pairs: list[tuple[str, Any]]) -> list[str]:
    return [key for key, times in Counter(key for key, _ in pairs).items() if times > 1]


def _refuse_constant(name: str) -> NoReturn:
    raise UnusableJson(f"it contains {name}, which is not JSON")


_fast = json.JSONDecoder(parse_constant=_refuse_constant)


def _guarded(raw: bytes, decoder: json.JSONDecoder) -> object:
    try:
        return decoder.decode(raw.decode())
    except UnusableJson:
        raise
    except UnicodeDecodeError as error:
        raise UnusableJson(f"it is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise UnusableJson(f"it is not JSON at character {error.pos}: {error.msg}") from None
    except RecursionError:
        raise UnusableJson("it is nested too deeply") from None
    except ValueError:
        raise UnusableJson("it contains a number of thousands of digits") from None


def _as_object(value: object) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise UnusableJson(f"it is {kind_of(value)}, not an object")


def _refuse_lone_surrogates(value: object) -> None:
    # json accepts "\ud800", but such a string can be neither written, printed nor sent
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UnusableJson("it contains half of a surrogate pair") from None
    except RecursionError:
        raise UnusableJson("it is nested too deeply") from None


def kind_of(value: object) -> str:
    """How a reader of JSON calls this value."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return "null" if value is None else kinds.get(type(value), "a number")
