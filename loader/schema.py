"""Family x format to the kinds of parameters and of checkpoint tensors that one model has."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from loadscope.loader.findings import Finding, finding
from loadscope.loader.tables import (
    Family,
    Fill,
    Format,
    Leaf,
    Param,
    Part,
    Role,
    Rule,
    Split,
    Stage,
)
from loadscope.loader.topology import compact, layers_in

TOP = 1  # layer mask of what stands outside the layers: one place, bit 0


# column labels of the heat map: the module, without what every name has
SHORT_NAMES = (
    ("self_attn.", "attn."),
    ("mlp.shared_experts.", "shared."),
    ("mlp.experts.", "experts."),
    ("mlp.gate.e_score_correction_bias", "router.bias"),
    ("mlp.gate.", "router."),
    (".weight_scale_inv", ".scale"),
    ("_weight_scale_inv", ".scale"),
    ("fused_qkv_a_proj_with_mqa", "qkv_a"),
    ("kv_a_proj_with_mqa", "kv_a"),
    ("_layernorm", "_norm"),
    ("_proj", ""),
)


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of parameter in stored elements, whole model; `table` is its Param's pattern.

    `block` says how many logical rows and columns one element covers.
    """

    name: str
    table: str
    dtype: str
    shape: tuple[int, ...]
    symbols: tuple[str, ...]
    splits: tuple[Split, ...]
    parts: tuple[Part, ...]
    part_dim: int
    block: tuple[int, int]
    layers: int
    stage: Stage
    fill: Fill
    role: Role
    accepts: tuple[str, ...]

    @property
    def is_stacked(self) -> bool:
        """Whether dim 0 counts experts."""
        return any(split.axis == "ep" for split in self.splits)

    @property
    def is_vocabulary(self) -> bool:
        return any(split.axis == "vocab" for split in self.splits)

    @property
    def module(self) -> str:
        """Column of the heat map: the module without its layer and leaf."""
        text = self.name.removeprefix("model.layers.{layer}.").removeprefix("model.")
        for long, short in SHORT_NAMES:
            text = text.replace(long, short)
        return text.removesuffix(".weight").removesuffix("_weight")

    def full_name(self, layer: int) -> str:
        return self.name.replace("{layer}", str(layer))


@dataclass(frozen=True, slots=True)
class Source:
    """One kind of checkpoint tensor and what happens to it; `target` None: skipped for `reason`.

    `pair` names the kind it waits for; `convert` the operation on it; `is_input` marks a scale
    that only feeds its weight's conversion and writes nothing itself.
    """

    name: str
    rule: str
    target: int | None = None
    part: str | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    symbols: tuple[str, ...] = ()
    role: Role = "weight"
    layers: int = TOP
    experts: int = 0
    pair: str | None = None
    convert: str | None = None
    is_input: bool = False
    block: tuple[int, int] = (1, 1)
    reason: str | None = None

    @property
    def outcome(self) -> str:
        if self.target is None:
            return "skipped"
        return "fused" if self.pair is not None else "loaded"

    def full_name(self, layer: int, expert: int) -> str:
        return self.name.replace("{layer}", str(layer)).replace("{expert}", str(expert))


@dataclass(slots=True)
class Schema:
    """All targets and sources; `known` finds a source by its name pattern and stored dtype."""

    targets: list[Target] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    by_dtype: dict[tuple[str, str], int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def find(self, pattern: str, dtype: str) -> int | None:
        special = self.by_dtype.get((pattern, dtype))
        return special if special is not None else self.known.get(pattern)

    def add_source(self, source: Source) -> int:
        """Two rules that could decide one name are our mistake, found as the table is built."""
        assert source.name not in self.known, f"two rules for {source.name}"
        self.sources.append(source)
        self.known[source.name] = len(self.sources) - 1
        return len(self.sources) - 1


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def expand(family: Family, form: Format, plain: Format) -> Schema:
    """The schema of a model; a fused parameter whose parts disagree is a finding."""
    schema = Schema()
    rules: dict[str, list[Rule]] = {}
    for rule in family.rules:
        rules.setdefault(rule.target, []).append(rule)
    names = {param.name for param in family.params}
    assert all(target in names or "." in target for target in rules)
    for param in family.params:
        own = rules.get(param.name, [Rule(param.name, param.name)])
        for variant, leaves in _variants(param, own, form, plain, schema):
            _expand_param(schema, variant, own, leaves, form)
    for skip in family.skips:
        layers = -1 if "{layer}" in skip.source else TOP
        schema.add_source(Source(skip.source, skip.source, layers=layers, reason=skip.reason))
    return schema


def _variants(
    param: Param, rules: list[Rule], form: Format, plain: Format, schema: Schema
) -> Iterator[tuple[Param, tuple[Leaf, ...]]]:
    """The parameter with the leaves its layers have: quantised ones, and excluded ones if any."""
    layers = param.layers if param.stage == "layer" else TOP
    if layers == 0:
        return
    param = replace(param, layers=layers)
    if not param.is_quantizable:
        yield param, (Leaf("", param.dtype, role=param.role),)
        return
    excluded = _excluded_layers(param, rules, form, schema)
    if layers & ~excluded:
        yield replace(param, layers=layers & ~excluded), form.leaves
    if excluded:
        yield replace(param, layers=excluded), plain.leaves


def _excluded_layers(param: Param, rules: list[Rule], form: Format, schema: Schema) -> int:
    if not form.excluded:
        return 0
    excluded, torn = 0, []
    for layer in layers_in(param.layers):
        modules = {_module(name, layer) for name in (param.name, *(r.source for r in rules))}
        covered = {form.covers(module) for module in modules if module in _parts(rules, layer)}
        if False in covered:
            excluded |= 1 << layer
        if len(covered) == 2:
            torn.append(layer)
    if torn:
        schema.findings.append(_torn(param, rules, torn))
    return excluded


def _module(pattern: str, layer: int) -> str:
    name = pattern.replace("{layer}", str(layer)).replace(".{expert}", "")
    return name.removesuffix(".{leaf}").removesuffix("_{leaf}")


def _parts(rules: list[Rule], layer: int) -> set[str]:
    return {_module(rule.source, layer) for rule in rules}


def _torn(param: Param, rules: list[Rule], layers: list[int]) -> Finding:
    names = ", ".join(rule.source.replace(".{leaf}", "") for rule in rules)
    return finding(
        "LS212",
        param.name,
        f"layers {compact(layers)}: the exclude list of quantization_config names some but not "
        f"all of {names}, which share one parameter",
        fix="list all of them in ignored_layers, or none",
        pattern=param.name,
        count=len(layers),
        evidence={"layers": compact(layers)},
    )


def _expand_param(
    schema: Schema, param: Param, rules: list[Rule], leaves: tuple[Leaf, ...], form: Format
) -> None:
    for leaf in leaves:
        schema.targets.append(_target(param, leaf))
        index = len(schema.targets) - 1
        for rule in rules:
            if rule.convert is None or form.leaves == leaves:
                _add(schema, _source(schema.targets[index], index, rule, leaf))
            else:
                _expand_conversion(schema, index, param, rule, form)


def _add(schema: Schema, source: Source) -> None:
    """A layer kind split by an exclude list has one source per stored dtype."""
    if source.name in schema.known:
        schema.sources.append(source)
        schema.by_dtype[(source.name, source.dtype)] = len(schema.sources) - 1
    else:
        schema.add_source(source)


def _expand_conversion(schema: Schema, index: int, param: Param, rule: Rule, form: Format) -> None:
    """A quantised source of an unquantised target: weight and scale are a pair that is converted.

    In layers that the format does not cover the weight is copied as it is.
    """
    target = schema.targets[index]
    plain = _source(target, index, replace(rule, convert=None), Leaf("weight", target.dtype))
    excluded = _excluded_layers(param, [rule], form, schema)
    if len(form.leaves) == 1:
        excluded = target.layers
    if excluded:
        _add(schema, replace(plain, layers=excluded))
    if target.layers & ~excluded:
        for source in _converted_pair(plain, rule, form):
            _add(schema, replace(source, layers=target.layers & ~excluded))


def _converted_pair(plain: Source, rule: Rule, form: Format) -> tuple[Source, Source]:
    weight, scale = form.leaves
    rows, columns = plain.shape
    stored = replace(
        plain, dtype=weight.dtype, convert=rule.convert, pair=_leafed(rule.source, scale.name)
    )
    grid = replace(
        stored,
        name=_leafed(rule.source, scale.name),
        dtype=scale.dtype,
        shape=(ceil_div(rows, scale.rows_per), ceil_div(columns, scale.cols_per)),
        role="scale",
        pair=stored.name,
        is_input=True,
        block=(scale.rows_per, scale.cols_per),
    )
    return stored, grid


def _leafed(pattern: str, leaf: str) -> str:
    return pattern.replace("{leaf}", leaf)


def _target(param: Param, leaf: Leaf) -> Target:
    per = _per_dim(len(param.shape), leaf)
    parts = tuple(Part(part.name, ceil_div(part.size, per[param.part_dim])) for part in param.parts)
    shape = [ceil_div(size, p) for size, p in zip(param.shape, per, strict=True)]
    if parts:
        shape[param.part_dim] = sum(part.size for part in parts)
    return Target(
        name=_leafed(param.name, leaf.name),
        table=param.name,
        dtype=leaf.dtype,
        shape=tuple(shape),
        symbols=param.symbols,
        splits=param.splits,
        parts=parts,
        part_dim=param.part_dim,
        block=(leaf.rows_per, leaf.cols_per),
        layers=param.layers,
        stage=param.stage,
        fill=param.fill,
        role=leaf.role,
        accepts=param.accepts,
    )


def _per_dim(ndim: int, leaf: Leaf) -> tuple[int, ...]:
    """How many logical elements one stored element covers, per dim: the last two are blocked."""
    return (*(1,) * (ndim - 2), leaf.rows_per, leaf.cols_per) if ndim >= 2 else (1,) * ndim


def _source(target: Target, index: int, rule: Rule, leaf: Leaf) -> Source:
    experts = target.shape[0] if target.is_stacked else 0
    shape, symbols = list(target.shape), list(target.symbols)
    if rule.part is not None:
        sizes = {part.name: part.size for part in target.parts}
        shape[target.part_dim] = sizes[rule.part]
        if len(target.parts) > 1:
            symbols[target.part_dim] = f"its share of {symbols[target.part_dim]}"
    if experts:
        shape, symbols = shape[1:], symbols[1:]
    return Source(
        name=_leafed(rule.source, leaf.name),
        rule=rule.source,
        target=index,
        part=rule.part,
        dtype=target.dtype,
        shape=tuple(shape),
        symbols=tuple(symbols),
        role=target.role,
        layers=target.layers,
        experts=experts,
        pair=None if rule.pair is None else _leafed(rule.pair, leaf.name),
        block=target.block,
    )
