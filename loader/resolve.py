"""Checkpoint names to routes: each name's tail is looked up once, its layers are a bit mask.

V3's 91,991 names have 1,570 tails; whether a kind is complete is one comparison of integers.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from loadscope.loader.checkpoint import Tensor
from loadscope.loader.schema import TOP, Schema, Source

LAYERS = "model.layers."
EXPERT = re.compile(r"(?<=\.experts\.)(0|[1-9][0-9]*)(?=\.)")
# exporters that wrap the language model put these in front of every name
INNER_WRAPPER = "model.language_model."
WRAPPERS = ("language_model.", INNER_WRAPPER)
WRAPPED_MODULE = ".base_layer."


class Name(NamedTuple):
    """A checkpoint name taken apart: wrapper, layer (None outside the layers), the rest."""

    wrapper: str
    layer: int | None
    tail: str


@dataclass(slots=True)
class Tail:
    """All checkpoint names of one dtype that differ only in the layer; masks say which layers.

    `source` is None for names that no rule knows. Masks: `seen` all of them, `routed` those that
    reach a parameter, `failed` those with a wrong shape or dtype, `beyond` those past the model.
    """

    wrapper: str
    text: str
    is_top: bool
    dtype: str
    source: int | None = None
    expert: int = 0
    seen: int = 0
    routed: int = 0
    failed: int = 0
    beyond: int = 0
    shapes: dict[tuple[int, ...], int] = field(default_factory=dict)
    respelled: bool = False

    def name(self, layer: int) -> str:
        name = self.text if self.is_top else f"{LAYERS}{layer}.{self.text}"
        if self.wrapper == INNER_WRAPPER:
            name = name.removeprefix("model.")
        return self.wrapper + name

    @property
    def pattern(self) -> str:
        """The name with holes for layer and expert; only expert numbers differ between tails."""
        place = "" if self.is_top else LAYERS + "{layer}."
        return place + EXPERT.sub("{expert}", self.text)

    def shape(self, layer: int) -> tuple[int, ...]:
        return next(shape for shape, mask in self.shapes.items() if mask >> layer & 1)


_LAYER_NUMBERS = {str(i): i for i in range(10_000)}


def split(name: str) -> Name:
    """Take a name apart. A number is a layer only if it stands after `layers` in canonical form."""
    wrapper = ""
    if not name.startswith(LAYERS):
        wrapper = next((w for w in WRAPPERS if name.startswith(w)), "")
        name = name[len(wrapper) :]
        if wrapper == INNER_WRAPPER:
            name = f"model.{name}"
        if not name.startswith(LAYERS):
            return Name(wrapper, None, name)
    end = name.find(".", len(LAYERS))
    layer = _LAYER_NUMBERS.get(name[len(LAYERS) : end])
    if layer is None or end < 0:
        return Name(wrapper, None, name)
    return Name(wrapper, layer, name[end + 1 :])


TailKey = tuple[str, bool, str, str]


def collect(tensors: Iterable[tuple[str, Tensor]]) -> dict[TailKey, Tail]:
    """All names grouped by tail; the only step that touches every name."""
    groups: dict[tuple[str, str, str, tuple[int, ...]], int] = {}
    tops: list[tuple[Name, Tensor]] = []
    numbers, start = _LAYER_NUMBERS, len(LAYERS)
    for name, tensor in tensors:
        if name.startswith(LAYERS):
            end = name.find(".", start)
            layer = numbers.get(name[start:end])
            if layer is not None and end > 0:
                key = ("", name[end + 1 :], tensor[0], tensor[1])
                groups[key] = groups.get(key, 0) | 1 << layer
                continue
        tops.append((split(name), tensor))
    tails: dict[TailKey, Tail] = {}
    for (wrapper, text, dtype, shape), mask in groups.items():
        _add(tails, (wrapper, False, text, dtype), shape, mask)
    for parsed, tensor in tops:
        is_top = parsed.layer is None
        mask = TOP if parsed.layer is None else 1 << parsed.layer
        _add(tails, (parsed.wrapper, is_top, parsed.tail, tensor.dtype), tensor.shape, mask)
    return tails


def _add(tails: dict[TailKey, Tail], key: TailKey, shape: tuple[int, ...], mask: int) -> None:
    tail = tails.get(key)
    if tail is None:
        wrapper, is_top, text, dtype = key
        tail = tails[key] = Tail(wrapper, text, is_top, dtype)
    tail.seen |= mask
    tail.shapes[shape] = tail.shapes.get(shape, 0) | mask


def resolve(tails: Iterable[Tail], schema: Schema, layers: int) -> None:
    """Give every tail its source and masks; `layers` is the mask of the model's layers."""
    for tail in list(tails):
        _bind(tail, schema)
        inside = TOP if tail.is_top else layers
        tail.beyond = tail.seen & ~inside
        if tail.source is not None:
            tail.routed = tail.seen & inside & schema.sources[tail.source].layers


def _bind(tail: Tail, schema: Schema) -> None:
    pattern = tail.pattern
    found = schema.find(pattern, tail.dtype)
    if found is None:
        for spelling in respellings(pattern):
            found = schema.find(spelling, tail.dtype)
            if found is not None:
                tail.respelled = True
                break
    if found is None:
        found = _absent_bias(pattern, schema)
    if found is None:
        return
    hit = EXPERT.search(tail.text)
    expert = int(hit.group()) if hit else 0
    source = schema.sources[found]
    if source.target is None or expert < max(source.experts, 1):
        tail.source, tail.expert = found, expert


def unwrapped(name: str) -> str:
    """A name without what adapters put inside it."""
    return name.replace(WRAPPED_MODULE, ".")


def respellings(pattern: str) -> Iterable[str]:
    """Other names under which exporters write the same tensor."""
    bare = unwrapped(pattern)
    if bare != pattern:
        yield bare
    if bare.endswith(".weight_scale"):
        yield bare + "_inv"


def _absent_bias(pattern: str, schema: Schema) -> int | None:
    """A bias of a module that has none here is skipped; an expert's bias is unknown."""
    module = pattern.removesuffix(".bias")
    if module == pattern or "{expert}" in pattern or f"{module}.weight" not in schema.known:
        return None
    layers = -1 if "{layer}" in pattern else TOP
    return schema.add_source(Source(pattern, f"{module}.bias", layers=layers, reason="bias_absent"))
