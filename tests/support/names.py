"""Checkpoint names without the loader's help: patterns with holes, and what a name belongs to."""

import re
from collections.abc import Iterable
from random import Random

_NUMBER = re.compile(r"\b(layers|experts)\.(\d+)\b")


def pattern_of(name: str) -> str:
    """The name with holes for its layer and expert numbers."""
    return _NUMBER.sub(lambda match: f"{match[1]}.{{{match[1][:-1]}}}", name)


def layer_of(name: str) -> int | None:
    match = re.match(r"model\.layers\.(\d+)\.", name)
    return None if match is None else int(match[1])


def expert_of(name: str) -> int | None:
    match = re.search(r"\.mlp\.experts\.(\d+)\.", name)
    return None if match is None else int(match[1])


def is_draft(name: str, num_hidden_layers: int) -> bool:
    layer = layer_of(name)
    return layer is not None and layer >= num_hidden_layers


def one_of_each_pattern(names: Iterable[str], seed: int) -> dict[str, str]:
    """A random name for every distinct pattern, the same for the same seed."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(pattern_of(name), []).append(name)
    random = Random(seed)
    return {pattern: random.choice(groups[pattern]) for pattern in sorted(groups)}
