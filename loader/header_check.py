"""A header that does not add up to the sentences that say why; runs only after an alarm."""

from collections.abc import Iterator, MutableMapping
from typing import Any

from loadscope.loader.faults import Faults, plain, shown
from loadscope.loader.header_sizes import DTYPE_BITS, byte_count, is_shape
from loadscope.loader.strict_json import kind_of


def drop_suspects(
    file: str,
    entries: dict[str, Any],
    suspects: list[str],
    tensors: MutableMapping[str, Any],
    faults: Faults,
) -> None:
    """A fault per suspect; it stays a tensor only if dtype, shape and offsets each make sense."""
    for name in suspects:
        code, text = _what_is_wrong(entries[name])
        faults.add(code, file, f"tensor {plain(name)}: {text}", tensor=name)
        if code != "LS106":
            tensors.pop(name, None)


def _what_is_wrong(entry: object) -> tuple[str, str]:
    if not isinstance(entry, dict):
        return "LS122", f"found {kind_of(entry)}; expected an object"
    missing = [key for key in ("dtype", "shape", "data_offsets") if key not in entry]
    if missing:
        return "LS122", f"found no {missing[0]}; expected dtype, shape and data_offsets"
    dtype, shape = entry["dtype"], entry["shape"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        return "LS107", f"found dtype {shown(dtype)}; expected one of {', '.join(DTYPE_BITS)}"
    if not is_shape(shape):
        return "LS122", f"found shape {shown(shape)}; expected a list of sizes from 0 to 2^63 - 1"
    return _what_is_wrong_with_bytes(dtype, tuple(shape), entry["data_offsets"])


def _what_is_wrong_with_bytes(
    dtype: str, shape: tuple[int, ...], offsets: object
) -> tuple[str, str]:
    span = _span(offsets)
    if span is None:
        return "LS105", f"found data_offsets {shown(offsets)}; expected two integers, begin ≤ end"
    found, expected = span[1] - span[0], byte_count(dtype, shape)
    if expected is None:
        return "LS106", f"found {dtype} of shape {shown(list(shape))}; expected whole bytes"
    what = f"{dtype} of shape {shown(list(shape))}"
    return "LS106", f"found {shown(found)} bytes; expected {shown(expected)} for {what}"


def _span(offsets: object) -> tuple[int, int] | None:
    if not isinstance(offsets, list) or len(offsets) != 2:
        return None
    begin, end = offsets
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end:
        return None
    return begin, end


def check_layout(
    file: str, entries: dict[str, Any], data_bytes: int | None, faults: Faults
) -> None:
    """The spans must cover the data part exactly: no overlap, no hole, nothing after the end."""
    spans = sorted(_spans(entries))
    end = max((stop for _, stop, _ in spans), default=0)
    is_every_span_known = len(spans) == len(entries)
    is_tiled = _check_tiling(file, spans, faults, report_holes=is_every_span_known)
    if data_bytes is None:
        return
    if end > data_bytes:
        _add_short(file, spans, data_bytes, faults, is_tiled=is_tiled)
    elif end < data_bytes and is_every_span_known:
        text = f"found {data_bytes:,} bytes of data; expected {end:,} by the header"
        faults.add("LS104", file, text)


def _spans(entries: dict[str, Any]) -> Iterator[tuple[int, int, str]]:
    for name, entry in entries.items():
        span = _span(entry.get("data_offsets")) if isinstance(entry, dict) else None
        if span is not None:
            yield *span, name


def _check_tiling(
    file: str, spans: list[tuple[int, int, str]], faults: Faults, *, report_holes: bool
) -> bool:
    end, is_tiled = 0, True
    for begin, stop, name in spans:
        if begin < end or (begin > end and report_holes):
            is_tiled = False
            kind = "an overlap" if begin < end else "a hole"
            text = f"tensor {plain(name)}: found {kind}: it begins at {shown(begin)}"
            text += f"; expected {shown(end)}, where the data before it ends"
            faults.add("LS105", file, text, tensor=name)
        end = max(end, stop)
    return is_tiled


def _add_short(
    file: str, spans: list[tuple[int, int, str]], data_bytes: int, faults: Faults, *, is_tiled: bool
) -> None:
    beyond = [(stop, name) for _, stop, name in spans if stop > data_bytes]
    stop, last = max(beyond)
    text = f"found {data_bytes:,} bytes of data; expected {shown(stop)}, the end of {plain(last)}"
    # a header that tiles is trusted, so the file is short; one that does not is wrong itself
    faults.add_names("LS103" if is_tiled else "LS105", file, text, [name for _, name in beyond])
