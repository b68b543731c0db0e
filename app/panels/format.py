"""Numbers as the pages write them; static/format.js says the same in the browser."""

UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def count(number: int) -> str:
    """1564 -> "1,564"."""
    return f"{number:,}"


def size(number: float) -> str:
    """14680064 -> "14.7 MB"; decimal units, as disks and networks are sold."""
    unit = 0
    while number >= 999.95 and unit < len(UNITS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.0f} B" if unit == 0 else f"{number:.1f} {UNITS[unit]}"


def rate(bytes_per_second: float | None) -> str:
    """26.6e9 -> "26.6 GB/s"."""
    return "–" if bytes_per_second is None else f"{size(bytes_per_second)}/s"


def seconds(value: float | None) -> str:
    """0.000655 -> "655 µs", 11.84 -> "11.8 s", 125 -> "2 min 05 s"."""
    if value is None:
        return "–"
    if value == 0:
        return "0 s"
    if value < 1:
        return (
            f"{value * 1e6:.0f} µs" if value < 0.001 else f"{value * 1e3:.{int(value < 0.1)}f} ms"
        )
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def percent(part: int, whole: int) -> str:
    """Never "100 %" before the last element, never "0 %" after the first."""
    if whole == 0:
        return "–"
    if 0 < part < whole:
        return f"{min(99.9, max(0.1, part * 1000 // whole / 10)):.1f} %"
    return "100 %" if part else "0 %"
