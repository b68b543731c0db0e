"""Which scheme a module has, which config entry decided it, and whether the headers agree."""

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_
from typing import Any

from loadscope.loader.assign import Assigner, module_of
from loadscope.loader.findings import Finding
from loadscope.loader.formats.format import Format
from loadscope.loader.plan import Plan, format_of
from loadscope.loader.resolve import EXPERT, LAYERS, Name, Tail, split, unwrapped
from loadscope.loader.schema import Source, Target
from loadscope.loader.tables import Param, Rule, Split
from loadscope.loader.topology import compact, layers_in

DECODER, LAYER = "model.decoder.", LAYERS + "{layer}."
MAX_HEADERS = 12


def describe_module(plan: Plan, module: str) -> dict[str, Any] | None:
    """What is known of one module's quantisation; None if the plan has no such module.

    The module is a full dotted name: a parameter's, or that of a part in the files, in any of
    their spellings. Of experts the headers show the first, unless the name says which.
    """
    found = _find(plan, module)
    if found is None:
        return None
    held, layer, expert = found
    first = plan.targets[held[0]]
    stored = [
        (tail, source)
        for number in held
        for tail, source in _tails(plan).get(number, ())
        if tail.seen >> layer & 1 and _is_shown(tail, source, layer, expert)
    ]
    wrong = [_disagreement(t, s, layer) for t, s in stored if t.failed >> layer & 1]
    return {
        "module": module,
        "role": plan.role,
        "format": plan.format,
        "scheme": first.scheme,
        "decided_by": _decided_by(plan, held[0], layer),
        "parts": _parts(plan, held, layer, expert),
        "registered": [_registered(plan, i, layer) for i in held],
        "headers": [_header(t, layer) for t, _source in stored[:MAX_HEADERS]],
        "headers_total": len(stored),
        "agree": not wrong,
        "disagreements": wrong[:MAX_HEADERS],
    }


def describe_format(plan: Plan) -> dict[str, Any]:
    """The format as a whole: what the config says, how its lists fare, who has which scheme."""
    form = _format(plan)
    entries = sum(len(e.texts) for e in form.lists) if form is not None else 0
    idle = [f for f in plan.findings if f.code == "LS213"]
    never = sum(f.count for f in idle)
    return {
        "format": plan.format,
        "method": form.method if form is not None else None,
        "fields": _fields(plan.model.quantization if plan.model is not None else None),
        "entries_total": entries,
        "matched": entries - never,
        "never_matched": {"count": never, "examples": [x for f in idle for x in _examples(f)]},
        "schemes": list(_schemes(plan)),
    }


def _format(plan: Plan) -> Format | None:
    if "format" not in plan.cache:
        model = plan.model
        form = format_of(model, plan.layout, plan.options) if model is not None else None
        plan.cache["format"] = form if isinstance(form, Format) else None
    kept: Format | None = plan.cache["format"]
    return kept


def _examples(finding: Finding) -> list[str]:
    examples = finding.evidence.get("examples")
    return [str(text) for text in examples] if isinstance(examples, list | tuple) else []


def _fields(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The config entry without its long lists."""
    return {
        key: f"{len(value)} entries" if isinstance(value, list) and len(value) > 4 else value
        for key, value in (config or {}).items()
        if key != "quantization"
    }


def _schemes(plan: Plan) -> Iterator[dict[str, Any]]:
    modules: dict[str, dict[str, int]] = {}
    for target in plan.targets:
        name = _module(target.table)
        masks = modules.setdefault(target.scheme, {})
        masks[name] = masks.get(name, 0) | (target.layers if target.stage == "layer" else 0)
    for scheme, masks in modules.items():
        layers = layers_in(reduce(or_, masks.values(), 0))
        yield {"scheme": scheme, "modules": list(masks), "layers": compact(layers)}


def _find(plan: Plan, module: str) -> tuple[list[int], int, int | None] | None:
    """Targets of a module in one layer, that layer, and the expert if the name says which."""
    name = split(f"{module}.weight")
    hit = EXPERT.search(name.tail)
    expert = int(hit.group()) if hit else None
    found = _by_module(plan).get(_pattern(name), [])
    if name.layer is None:
        # outside the layers, or in a draft's parameters, whose names leave the layer out
        found = [i for i in found if "{layer}" not in plan.targets[i].table]
    if not found:
        return None
    layer = layers_in(plan.targets[found[0]].layers)[0] if name.layer is None else name.layer
    held = [i for i in found if plan.targets[i].layers >> layer & 1]
    if expert is not None and not any(_has_expert(plan, i, expert) for i in held):
        return None
    return (held, layer, expert) if held else None


def _pattern(name: Name) -> str:
    place = "" if name.layer is None else LAYER
    tail = unwrapped(EXPERT.sub("{expert}", name.tail)).removesuffix(".weight")
    return _alike(place + tail)


def _alike(pattern: str) -> str:
    """A draft's parameters and their parts in the files stand under one name."""
    return pattern.replace(DECODER, LAYER)


def _has_expert(plan: Plan, number: int, expert: int) -> bool:
    sources = _sources_of(plan).get(number, ())
    return any(0 <= expert - s.first_expert < s.experts for s in sources)


def _is_shown(tail: Tail, source: Source, layer: int, expert: int | None) -> bool:
    if expert is not None and source.experts:
        return tail.expert == expert
    return bool(tail.failed >> layer & 1) or tail.expert == source.first_expert


def _decided_by(plan: Plan, number: int, layer: int) -> str:
    """The entry for this layer: the plan keeps one entry for all layers of a scheme."""
    target, form = plan.targets[number], _format(plan)
    if form is None or plan.model is None or "{leaf}" not in target.table:
        return target.decided_by
    rules: dict[str, bool] = {}
    for source in _sources_of(plan).get(number, ()):
        rules[source.rule] = rules.get(source.rule, True) and source.is_alternative
    by_expert = (Split(0, "ep"),) if target.is_stacked else ()
    param = Param(target.table, (), (), target.dtype, by_expert, layers=1 << layer)
    names = [Rule(name, param.name, is_alternative=other) for name, other in rules.items()]
    ((assigned, _layers),) = Assigner(form, plan.model.n_routed_experts).by_layer(param, names)
    return assigned.entry if assigned.scheme.name == target.scheme else target.decided_by


def _by_module(plan: Plan) -> dict[str, list[int]]:
    """Targets by the patterns of their own module and of their sources' modules."""
    if "targets_by_module" not in plan.cache:
        index: dict[str, list[int]] = {}
        for number, target in enumerate(plan.targets):
            for name in _modules(plan, number, target):
                index.setdefault(name, []).append(number)
        plan.cache["targets_by_module"] = index
    kept: dict[str, list[int]] = plan.cache["targets_by_module"]
    return kept


def _modules(plan: Plan, number: int, target: Target) -> set[str]:
    sources = _sources_of(plan).get(number, ())
    patterns = {target.table, *(s.rule for s in sources)}
    # one expert's tensors may have a name of their own for their module: w1
    named = {s.name.rpartition(".")[0] for s in sources if "{expert}" in s.name}
    return {_alike(_module(pattern)) for pattern in patterns | named}


def _module(pattern: str) -> str:
    return module_of(pattern.replace("{layer}", "{}"), 0).replace("{}", "{layer}")


def _sources_of(plan: Plan) -> dict[int, list[Source]]:
    if "sources_of_target" not in plan.cache:
        index: dict[int, list[Source]] = {}
        for source in plan.sources:
            if source.target is not None:
                index.setdefault(source.target, []).append(source)
        plan.cache["sources_of_target"] = index
    kept: dict[int, list[Source]] = plan.cache["sources_of_target"]
    return kept


def _tails(plan: Plan) -> dict[int, list[tuple[Tail, Source]]]:
    """Stored tensors by the target that they fill or should fill."""
    if "tails_of_target" not in plan.cache:
        index: dict[int, list[tuple[Tail, Source]]] = {}
        for tail in plan.tails:
            source = plan.sources[tail.source] if tail.source is not None else None
            if source is None or source.target is None:
                continue
            index.setdefault(source.target, []).append((tail, source))
        plan.cache["tails_of_target"] = index
    kept: dict[int, list[tuple[Tail, Source]]] = plan.cache["tails_of_target"]
    return kept


def _parts(plan: Plan, held: list[int], layer: int, expert: int | None) -> list[dict[str, Any]]:
    """The modules in the files that make up this one, each with the exclude entry that names it."""
    form = _format(plan)
    names: dict[str, None] = {}
    for number in held:
        for source in _sources_of(plan).get(number, ()):
            if not source.is_alternative and source.role == "weight":
                number_of = source.first_expert if expert is None else expert
                name = module_of(source.rule, layer).replace("{expert}", str(number_of))
                names[name] = None
    return [
        {"module": name, "entry": form.excludes(name) if form is not None else None}
        for name in names
    ]


def _registered(plan: Plan, number: int, layer: int) -> dict[str, Any]:
    target = plan.targets[number]
    shape = plan.shapes[number] if plan.shapes else target.shape
    return {
        "name": target.full_name(layer),
        "dtype": target.dtype,
        "shape": list(shape),
        "fill": target.fill.kind,
    }


def _header(tail: Tail, layer: int) -> dict[str, Any]:
    return {"name": tail.name(layer), "dtype": tail.dtype, "shape": list(tail.shape(layer))}


def _disagreement(tail: Tail, source: Source, layer: int) -> str:
    shape = list(tail.shape(layer))
    return (
        f"{tail.name(layer)} is stored as {tail.dtype} {shape}; expected {source.dtype} "
        f"{list(source.shape)}"
    )
