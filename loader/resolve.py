"""Checkpoint names to routes: each name's tail is looked up once, its layers are a bit mask.

V3's 91,991 names have 1,570 tails; whether a kind is complete is one comparison of integers.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
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


def resolve(tails: Iterable[Tail], schema: Schema, layers: int, *, has_top: bool) -> list[Tail]:
    """Every tail with its source and masks; `layers` is the mask of the model's layers.

    A tail whose layers mean different sources comes back as several.
    """
    resolved = []
    for whole in tails:
        for tail in _bind(whole, schema):
            inside = (TOP if has_top else 0) if tail.is_top else layers
            tail.beyond = tail.seen & ~inside
            if tail.source is not None:
                tail.routed = tail.seen & inside & schema.sources[tail.source].layers
            resolved.append(tail)
    return resolved


def _bind(tail: Tail, schema: Schema) -> list[Tail]:
    pattern = tail.pattern
    found = schema.known.get(pattern)
    if found is None:
        for spelling in respellings(pattern):
            found = schema.known.get(spelling)
            if found is not None:
                tail.respelled = True
                break
    if found is None:
        found = _absent_bias(pattern, schema)
    if found is None:
        return [tail]
    hit = EXPERT.search(tail.text)
    number = int(hit.group()) if hit else None
    return [
        _bound(part, schema.sources[index], index, number)
        for index, part in _by_source(tail, found, schema)
    ]


def _bound(tail: Tail, source: Source, index: int, number: int | None) -> Tail:
    expert = number if number is not None else source.first_expert
    first, last = source.first_expert, source.first_expert + max(source.experts, 1)
    if source.target is None or first <= expert < last:
        tail.source, tail.expert = index, expert
    return tail


def _by_source(tail: Tail, found: list[int], schema: Schema) -> list[tuple[int, Tail]]:
    """Each layer's source: of the stored dtype if there is one, else any that has the layer."""
    if len(found) == 1:
        return [(found[0], tail)]
    rest, masks = tail.seen, dict.fromkeys(found, 0)
    for same_dtype in (True, False):
        for index in found:
            source = schema.sources[index]
            if not same_dtype or source.dtype in (tail.dtype, ""):
                masks[index] |= rest & source.layers
                rest &= ~source.layers
    masks[found[0]] |= rest
    used = [(index, mask) for index, mask in masks.items() if mask]
    if len(used) == 1:
        return [(used[0][0], tail)]
    return [(index, _part_of(tail, mask)) for index, mask in used]


def _part_of(tail: Tail, mask: int) -> Tail:
    """The tail in some of its layers only."""
    shapes = {shape: where & mask for shape, where in tail.shapes.items() if where & mask}
    return replace(tail, seen=mask, shapes=shapes)


def unwrapped(name: str) -> str:
    """A name without what adapters put inside it."""
    return name.replace(WRAPPED_MODULE, ".")


def respellings(pattern: str) -> Iterable[str]:
    """Other names under which exporters write the same tensor."""
    bare = unwrapped(pattern)
    if bare != pattern:
        yield bare
    if bare.endswith("_scale"):
        yield bare + "_inv"
    if bare.endswith("weight_scale_inv"):
        yield bare.removesuffix("_inv")


def _absent_bias(pattern: str, schema: Schema) -> list[int] | None:
    """A bias of a module that has none here is skipped; an expert's bias is unknown."""
    module = pattern.removesuffix(".bias")
    if module == pattern or "{expert}" in pattern:
        return None
    if not any(f"{module}.{leaf}" in schema.known for leaf in ("weight", "qweight")):
        return None
    layers = -1 if "{layer}" in pattern else TOP
    return [schema.add(Source(pattern, f"{module}.bias", layers=layers, reason="bias_absent"))]
