"""Stored dtypes and shapes against what the schema expects, and names that no rule knows."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from loadscope.loader.dtypes import FLOATS, cast
from loadscope.loader.findings import Finding, Level, finding
from loadscope.loader.formats.format import Format
from loadscope.loader.model import Model
from loadscope.loader.resolve import Tail
from loadscope.loader.schema import Schema, Source, Target
from loadscope.loader.topology import compact, layers_in

MAX_EXAMPLES = 5
MAX_SUGGESTED_PATTERNS = 50


@dataclass(slots=True)
class _Group:
    """Names with one fault and one pattern."""

    count: int = 0
    elements: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, tail: Tail, mask: int, elements: int) -> None:
        layers = layers_in(mask)
        self.count += len(layers)
        self.elements += elements * len(layers)
        for layer in layers[: MAX_EXAMPLES - len(self.examples)]:
            self.examples.append(tail.name(layer))


def check_stored(
    tails: Iterable[Tail], schema: Schema, model: Model, form: Format
) -> list[Finding]:
    """Compare every routed tail with its source; what cannot be copied moves to `failed`."""
    shapes: dict[tuple[int, tuple[int, ...]], _Group] = {}
    dtypes: dict[tuple[int, str], _Group] = {}
    for tail in tails:
        if tail.source is None or not tail.routed:
            continue
        source = schema.sources[tail.source]
        if source.target is None:
            continue
        _check_dtype(tail, source, schema.targets[source.target], dtypes)
        _check_shapes(tail, source, shapes)
    return [
        *(_wrong_shape(schema.sources[s], shape, g, model) for (s, shape), g in shapes.items()),
        *(_cast(schema, schema.sources[s], dtype, g, form) for (s, dtype), g in dtypes.items()),
    ]


def _check_dtype(
    tail: Tail, source: Source, target: Target, groups: dict[tuple[int, str], _Group]
) -> None:
    if tail.dtype == source.dtype:
        return
    assert tail.source is not None
    group = groups.setdefault((tail.source, tail.dtype), _Group())
    for shape, mask in tail.shapes.items():
        if mask & tail.routed:
            group.add(tail, mask & tail.routed, prod(shape))
    if _cast_level(tail.dtype, source, target) == "error":
        tail.failed |= tail.routed
        tail.routed = 0


def _cast_level(stored: str, source: Source, target: Target) -> Level:
    kind = cast(stored, source.dtype)
    if kind == "widening":
        return "note"
    if kind == "narrowing" and (source.role != "weight" or stored in target.accepts):
        return "warning"
    return "error"


def _check_shapes(
    tail: Tail, source: Source, groups: dict[tuple[int, tuple[int, ...]], _Group]
) -> None:
    for shape, mask in tail.shapes.items():
        wrong = mask & (tail.routed | tail.failed)
        if not wrong or _same_shape(shape, source.shape):
            continue
        assert tail.source is not None
        groups.setdefault((tail.source, shape), _Group()).add(tail, wrong, prod(shape))
        tail.failed |= wrong
        tail.routed &= ~wrong


def _same_shape(stored: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """A scalar may be stored as [] or [1], one scale per row as [N] or [N, 1]."""
    if stored == wanted:
        return True
    if len(stored) + len(wanted) == 1:
        return prod(stored) == prod(wanted) == 1
    return len(wanted) == 2 and wanted[1] == 1 and stored == wanted[:1]


def _wrong_shape(source: Source, shape: tuple[int, ...], group: _Group, model: Model) -> Finding:
    expected = list(source.shape)
    symbols = source.symbols if source.shape else ()
    meaning = " x ".join(f"({s})" if " " in s else s for s in symbols)
    guessed = [f for f in model.defaulted if any(f in symbol for symbol in source.symbols)]
    note = (
        f"; {', '.join(guessed)} was not in config.json and a default was used" if guessed else ""
    )
    return finding(
        "LS401",
        group.examples[0],
        f"{group.examples[0]} has shape {list(shape)}; expected {expected}"
        f"{f' = {meaning}' if meaning else ''}{note}",
        fix="correct the tensor, or the config fields that give the expected shape",
        pattern=source.name,
        count=group.count,
        example=group.examples[0],
        evidence={
            "found": list(shape),
            "expected": expected,
            "fields": list(source.symbols),
            "elements": group.elements,
            "names": group.examples,
        },
        rule=source.rule,
    )


def _cast(schema: Schema, source: Source, stored: str, group: _Group, form: Format) -> Finding:
    assert source.target is not None
    target = schema.targets[source.target]
    level = _cast_level(stored, source, target)
    example = group.examples[0]
    message = f"{example} is stored as {stored}; {target.name} wants {source.dtype}"
    code, fix = "LS404", "nothing to do: every value is kept"
    if level == "warning":
        code, fix = "LS405", "store it in the wanted dtype if the lost digits matter"
    if level == "error":
        code, fix = "LS402", "store it in the expected dtype, or correct config.json"
        why = _disagreement(source, target, stored, form)
        if why is not None:
            code, message, fix = "LS403", f"{example} is stored as {stored}, but {why}", QUANTISE
    return finding(
        code,
        example,
        message,
        fix=fix,
        level=level,
        pattern=source.name,
        count=group.count,
        example=example,
        evidence={
            "found": stored,
            "expected": source.dtype,
            "elements": group.elements,
            "names": group.examples,
        },
        rule=source.rule,
    )


QUANTISE = (
    "add the module to the exclude list of the quantisation config or take it out, or store the "
    "tensor as the config says"
)


def _disagreement(source: Source, target: Target, stored: str, form: Format) -> str | None:
    """Why config and header disagree about quantisation; None if something else is wrong."""
    may_be_quantised = source.role == "weight" and "{leaf}" in source.rule
    if not may_be_quantised or (stored in FLOATS) == (source.dtype in FLOATS):
        return None
    if form.method == "none":
        return f"config.json has no quantisation entry: expected {source.dtype}"
    is_own = target.scheme != "none"
    decided = f"{form.config_entry}: {target.decided_by}" if is_own else form.config_entry
    return f"{decided}: expected {source.dtype}"


def check_names(tails: Sequence[Tail], schema: Schema) -> list[Finding]:
    """Unknown names with the nearest known ones, other spellings, rules that matched nothing."""
    unknown: dict[str, _Group] = {}
    respelled: dict[tuple[str, int], _Group] = {}
    for tail in tails:
        lost = tail.seen & ~(tail.routed | tail.failed | tail.beyond)
        if lost and (tail.source is None or schema.sources[tail.source].target is not None):
            shape = next(iter(tail.shapes))
            unknown.setdefault(tail.pattern, _Group()).add(tail, lost, prod(shape))
        if tail.source is not None and (tail.respelled or tail.wrapper) and tail.routed:
            key = (tail.wrapper + tail.pattern, tail.source)
            respelled.setdefault(key, _Group()).add(tail, tail.routed, 0)
    known = list(schema.known)
    return [
        *(
            _unknown(pattern, group, known if i < MAX_SUGGESTED_PATTERNS else [])
            for i, (pattern, group) in enumerate(unknown.items())
        ),
        *(_respelled(p, schema.sources[s], g) for (p, s), g in respelled.items()),
        *_unused(tails, schema),
    ]


def _unknown(pattern: str, group: _Group, known: list[str]) -> Finding:
    nearest = difflib.get_close_matches(pattern, known, n=3, cutoff=0.7)
    hint = f"; nearest known names: {', '.join(nearest)}" if nearest else ""
    return finding(
        "LS301",
        group.examples[0],
        f"no rule has a place for {group.examples[0]} here: it is not loaded{hint}",
        fix="rename the tensor, or remove it from the checkpoint if it is not needed",
        pattern=pattern,
        count=group.count,
        example=group.examples[0],
        evidence={"elements": group.elements, "nearest": nearest, "names": group.examples},
    )


def _respelled(pattern: str, source: Source, group: _Group) -> Finding:
    return finding(
        "LS303",
        group.examples[0],
        f"{group.examples[0]} is taken for {source.name}",
        fix="nothing to do; a rename would make it plain",
        pattern=pattern,
        count=group.count,
        example=group.examples[0],
        evidence={"known_as": source.name},
        rule=source.rule,
    )


def _unused(tails: Sequence[Tail], schema: Schema) -> list[Finding]:
    """A rule without a single name; skips and optional parameters are allowed to be idle."""
    used = {schema.sources[t.source].rule for t in tails if t.source is not None and t.seen}
    idle: dict[str, Source] = {}
    for source in schema.sources:
        if source.target is None or source.rule in used or source.is_alternative:
            continue
        target = schema.targets[source.target]
        if target.fill.is_written or target.is_stacked:
            idle.setdefault(source.rule, source)
    return [
        finding(
            "LS302",
            rule,
            f"the checkpoint has no tensor for the rule {rule}",
            fix="see the gap it leaves; a whole module may be named differently in this file",
            pattern=rule,
            evidence={"layers": compact(layers_in(source.layers))} if "{layer}" in rule else {},
            rule=rule,
        )
        for rule, source in idle.items()
    ]
