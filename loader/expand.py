"""Family x format to the kinds of parameters and of checkpoint tensors that one model has."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from loadscope.loader.assign import Assigner, rules_of
from loadscope.loader.formats.format import Assigned, Format
from loadscope.loader.schema import TOP, Schema, Source, Target
from loadscope.loader.shapes import make_target, share_of, stored_shape
from loadscope.loader.tables import Family, Leaf, Param, Rule, Scheme

UNCONDITIONAL = "not quantised in this model family"


def expand(family: Family, form: Format, num_experts: int) -> Schema:
    """The schema of a model; a fused parameter whose parts disagree is a finding."""
    schema = Schema()
    assigner = Assigner(form, num_experts)
    rules = rules_of(family)
    for param in family.params:
        layers = param.layers if param.stage == "layer" else TOP
        if layers:
            _Expansion(schema, assigner, replace(param, layers=layers), rules[param.name]).run()
    for skip in family.skips:
        layers = skip.layers if "{layer}" in skip.source else TOP
        schema.add(Source(skip.source, skip.source, layers=layers, reason=skip.reason))
    schema.findings += assigner.findings
    return schema


class _Expansion:
    """One parameter: its targets, and every name that may bring a share of one."""

    def __init__(
        self, schema: Schema, assigner: Assigner, param: Param, rules: Sequence[Rule]
    ) -> None:
        self.schema = schema
        self.assigner = assigner
        self.param = param
        self.primary = [rule for rule in rules if not rule.is_alternative]
        self.alternatives = [rule for rule in rules if rule.is_alternative]

    def run(self) -> None:
        if not self.param.is_quantizable:
            self._unquantised()
            return
        rules = [*self.primary, *self.alternatives]
        for assigned, layers in self.assigner.by_layer(self.param, rules):
            param = replace(self.param, layers=layers)
            self.schema.schemes[assigned.scheme.name] = assigned.scheme
            targets = {}
            for leaf in assigned.scheme.leaves:
                targets[leaf.name] = self._leaf(param, leaf, assigned)
            if _is_rescaled(param, assigned.scheme):
                self._feed_rescaling(targets, assigned.scheme)
            self._skip_unused(assigned.scheme, layers)

    def _leaf(self, param: Param, leaf: Leaf, assigned: Assigned) -> int:
        """One target with its sources; returns its index."""
        target = make_target(param, leaf, assigned.scheme.name, assigned.entry)
        index = self._target(target)
        if not target.fill.is_allocated:
            return index
        if _is_combined(param, leaf):
            self._combined(index, target, leaf)
        elif leaf.name == assigned.scheme.rescaled and _is_rescaled(param, assigned.scheme):
            for rule in self.primary:
                self.schema.add(self._rescaled(index, target, rule, assigned.scheme))
        elif leaf.convert is not None:
            for rule in self.primary:
                self.schema.add_use(self._converted(index, target, rule, leaf))
            return index
        else:
            for rule in self.primary:
                self._copied(index, target, rule, leaf)
        for rule in self.alternatives:
            self._alternative(index, target, rule, leaf)
        return index

    def _copied(self, index: int, target: Target, rule: Rule, leaf: Leaf) -> None:
        source = self._plain(index, target, rule, leaf)
        self.schema.add(source)
        if leaf.is_mixtral and rule.mixtral is not None:
            name = leafed(rule.source, leaf.name)
            self.schema.add(replace(source, name=name, is_alternative=True))

    def _target(self, target: Target) -> int:
        self.schema.targets.append(target)
        return len(self.schema.targets) - 1

    def _unquantised(self) -> None:
        """A parameter in the model's dtype; quantised sources are turned into floats on the way."""
        param = self.param
        leaf = Leaf("", param.dtype, role=param.role, fill=param.fill, accepts=param.accepts)
        target = make_target(param, leaf, "none", UNCONDITIONAL)
        index = self._target(target)
        if not target.fill.is_allocated:
            return
        for rule in self.primary:
            if rule.is_dequantised:
                self._dequantised(index, target, rule)
            else:
                self.schema.add(self._plain(index, target, rule, leaf))
        for rule in self.alternatives:
            self._alternative(index, target, rule, leaf)

    def _plain(self, index: int, target: Target, rule: Rule, leaf: Leaf) -> Source:
        """A tensor that is copied: its shape is its share of the target."""
        extent, experts, first = share_of(target, self.param, rule)
        symbols = list(target.symbols[1:] if experts else target.symbols)
        if rule.part is not None and len(target.parts) > 1:
            dim = target.part_dim - (1 if experts else 0)
            symbols[dim] = f"its share of {symbols[dim]}"
        return Source(
            name=named(rule, leaf),
            rule=rule.source,
            target=index,
            part=rule.part,
            dtype=target.dtype,
            shape=() if leaf.is_per_tensor and prod(extent) == 1 else extent,
            extent=extent,
            origin=(0,) * len(extent),
            per=target.per[1:] if experts else target.per,
            logical=_logical_share(target, rule, experts > 0),
            symbols=tuple(symbols),
            role=target.role,
            layers=target.layers,
            experts=experts,
            first_expert=first,
            pair=None if rule.pair is None else named(rule, leaf, rule.pair),
            is_alternative=rule.is_alternative,
        )

    def _converted(self, index: int, target: Target, rule: Rule, leaf: Leaf) -> Source:
        """A tensor that one operation turns into its share."""
        assert leaf.stored is not None
        plain = self._plain(index, target, rule, leaf)
        name = named(rule, leaf.stored)
        return replace(
            plain,
            name=name,
            dtype=leaf.stored.dtype,
            shape=stored_shape(plain.logical, leaf.stored),
            pair=None,
            convert=leaf.convert,
            inputs=(name,),
            carrier=name,
            arguments=leaf.arguments,
        )

    def _combined(self, index: int, target: Target, leaf: Leaf) -> None:
        """Several scalars that meet in one slot: the greatest counts, in whatever order."""
        groups: dict[tuple[int, int], list[Source]] = {}
        for rule in self.primary:
            source = self._plain(index, target, replace(rule, part=None), leaf)
            source = replace(source, part=rule.part, shape=())
            groups.setdefault((source.first_expert, source.experts), []).append(source)
        for sources in groups.values():
            names = tuple(source.name for source in sources)
            for source in sources:
                self.schema.add_use(
                    replace(source, convert="greatest", inputs=names, carrier=names[0])
                )
            if leaf.is_mixtral:
                self._second_names(sources, leaf)

    def _second_names(self, sources: list[Source], leaf: Leaf) -> None:
        """The same scalars under the names of their projections."""
        plain = replace(leaf, is_mixtral=False)
        by_part = {rule.part: rule for rule in self.primary if rule.expert is None}
        names = tuple(named(by_part[source.part], plain) for source in sources)
        for source, name in zip(sources, names, strict=True):
            self.schema.add(
                replace(
                    source, name=name, convert="greatest", inputs=names, carrier=names[0],
                    is_alternative=True,
                )
            )  # fmt: skip

    def _rescaled(self, index: int, target: Target, rule: Rule, scheme: Scheme) -> Source:
        """Codes whose scale per tensor the other parts share: theirs is an input too."""
        leaf = next(leaf for leaf in scheme.leaves if leaf.name == scheme.rescaled)
        plain = self._plain(index, target, rule, leaf)
        others = [other for other in self.primary if other != rule]
        scales = [leafed(other.source, scheme.tensor_scale) for other in (rule, *others)]
        inputs = (plain.name, *scales)
        return replace(plain, convert="rescale_codes", inputs=inputs, carrier=plain.name)

    def _feed_rescaling(self, targets: Mapping[str, int], scheme: Scheme) -> None:
        """Every part's scale feeds every part's codes, beside filling the common slot."""
        index = targets[scheme.rescaled or ""]
        scale = self.schema.targets[targets[scheme.tensor_scale]]
        for rule in self.primary:
            carrier = self._rescaled(index, self.schema.targets[index], rule, scheme)
            for name in carrier.inputs[1:]:
                self.schema.add_use(
                    replace(
                        carrier, name=name, dtype=scale.dtype, shape=(), role="scale", pair=None,
                        carrier=carrier.name,
                    )
                )  # fmt: skip

    def _dequantised(self, index: int, target: Target, rule: Rule) -> None:
        """A quantised module of an unquantised parameter; in excluded layers a plain copy."""
        leaf = Leaf("weight", target.dtype)
        for assigned, layers in self.assigner.by_layer(self.param, [rule]):
            plain = replace(self._plain(index, target, rule, leaf), layers=layers)
            scheme = assigned.scheme
            if not scheme.is_quantised or rule.follows_header:
                self.schema.add(plain)
            if scheme.is_quantised:
                self._dequantised_group(plain, rule, scheme)
                self._skip_unused(scheme, layers, [rule])

    def _dequantised_group(self, plain: Source, rule: Rule, scheme: Scheme) -> None:
        leaves = {leaf.name: leaf.stored or leaf for leaf in scheme.leaves}
        names = tuple(leafed(rule.source, name) for name in scheme.dequantised_leaves)
        pairs = dict(zip(names, reversed(names), strict=True)) if len(names) == 2 else {}
        for name, leaf_name in zip(names, scheme.dequantised_leaves, strict=True):
            leaf = leaves[leaf_name]
            self.schema.add(
                replace(
                    plain,
                    name=name,
                    dtype=leaf.dtype,
                    shape=stored_shape(plain.logical, leaf),
                    role=leaf.role,
                    pair=pairs.get(name),
                    convert=scheme.dequantise,
                    inputs=names,
                    carrier=names[0],
                    arguments=scheme.block,
                )
            )

    def _alternative(self, index: int, target: Target, rule: Rule, leaf: Leaf) -> None:
        """A parameter that is fused in the files already: one tensor, cut per part."""
        if leaf.is_mixtral or leaf.convert is not None:
            return
        whole = self._plain(index, target, rule, leaf)
        if len(target.parts) < 2:
            self.schema.add(whole)
            return
        dim = target.part_dim - (1 if whole.experts else 0)
        first, start = None, 0
        for part in target.parts:
            extent, origin = list(whole.extent), [0] * len(whole.extent)
            extent[dim], origin[dim] = part.size, start
            source = replace(whole, part=part.name, extent=tuple(extent), origin=tuple(origin))
            if first is None:
                first = self.schema.add(source)
            else:
                self.schema.add_sibling(first, source)
            start += part.size

    def _skip_unused(
        self, scheme: Scheme, layers: int, rules: Iterable[Rule] | None = None
    ) -> None:
        """Tensors that some exporters add and that have no parameter here."""
        stored = {leaf.name for leaf in scheme.leaves} if rules is None else set()
        for leaf in scheme.unused:
            for rule in self.primary if rules is None else rules:
                if leaf not in stored:
                    name = leafed(rule.source, leaf)
                    reason = "input_scale_unused"
                    self.schema.add(Source(name, rule.source, layers=layers, reason=reason))


def _is_combined(param: Param, leaf: Leaf) -> bool:
    if not leaf.is_per_tensor or len(param.parts) < 2:
        return False
    return leaf.slot != "part" if param.is_stacked else param.shares_scale


def _is_rescaled(param: Param, scheme: Scheme) -> bool:
    return scheme.rescaled is not None and param.shares_scale and len(param.parts) > 1


def _logical_share(target: Target, rule: Rule, is_expert: bool) -> tuple[int, ...]:
    """Logical rows and columns of one source's share, in the target's order of dims."""
    logical = list(target.logical)
    if rule.part is not None and len(target.parts) > 1:
        names = [part.name for part in target.parts]
        logical[target.part_dim] = target.logical_parts[names.index(rule.part)]
    return tuple(logical[1:] if is_expert else logical)


LEAF_TAILS = {"weight": "", "": ""}


def leafed(pattern: str, leaf: str) -> str:
    """A pattern with its leaf; {_leaf} is how stacked experts write it."""
    tail = LEAF_TAILS.get(leaf, "_" + leaf.removeprefix("weight_"))
    return pattern.replace("{leaf}", leaf).replace("{_leaf}", tail)


def named(rule: Rule, leaf: Leaf, pattern: str | None = None) -> str:
    """What a rule calls a leaf in the files."""
    if pattern is None and leaf.is_mixtral and rule.mixtral is not None:
        return leafed(rule.mixtral, leaf.name)
    return leafed(pattern or rule.source, leaf.name)
