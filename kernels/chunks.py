"""A matrix in ranges of rows, so that a wide temporary stays small beside the matrix."""

from collections.abc import Iterator

ELEMENTS_AT_ONCE = 1 << 20


def row_chunks(rows: int, columns: int, multiple: int = 1) -> Iterator[slice]:
    """Slices of `multiple` rows or more that cover 0 … rows once, each about a million elements."""
    step = max(1, ELEMENTS_AT_ONCE // max(columns, 1) // multiple) * multiple
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
