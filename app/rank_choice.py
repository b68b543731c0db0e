"""Which ranks one process holds: the given ones, else all that fit in memory, else rank 0."""

from collections.abc import Mapping


def parse_ranks(text: str, world: int) -> tuple[int, ...]:
    """Ranks of `0,2-3` or `all`, ascending; raises ValueError for what the layout lacks."""
    if text == "all":
        return tuple(range(world))
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"ranks {text!r}; expected all, or numbers such as 0,2-3")
        ranks.update(range(int(first), int(last if dash else first) + 1))
    if not ranks or max(ranks) >= world:
        raise ValueError(f"ranks {text!r}: this layout has ranks 0 to {world - 1}")
    return tuple(sorted(ranks))


def choose_ranks(
    text: str | None, parameter_bytes: Mapping[int, int], available_bytes: int | None
) -> tuple[int, ...]:
    """`available_bytes` is None where the machine does not tell: then rank 0 alone."""
    if text is not None:
        return parse_ranks(text, len(parameter_bytes))
    fits = available_bytes is not None and sum(parameter_bytes.values()) <= available_bytes
    return tuple(sorted(parameter_bytes)) if fits else (0,)
