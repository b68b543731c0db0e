"""Which scheme each parameter has in each layer, by the lists of the quantisation config."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from loadscope.loader.findings import Finding, finding
from loadscope.loader.formats.entries import matched
from loadscope.loader.formats.format import Assigned, Format
from loadscope.loader.tables import Family, Param, Rule
from loadscope.loader.topology import compact, layers_in

NUMBERED_EXPERT = re.compile(r"experts\\?\.[\[\\(\d]")


@dataclass(frozen=True, slots=True)
class Modules:
    """The names of one parameter's modules in one layer: the fused one, and its parts."""

    fused: tuple[str, ...]
    parts: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.fused, *self.parts)


class Assigner:
    """Schemes of parameters, with what the lists left unclear."""

    def __init__(self, form: Format, num_experts: int) -> None:
        self.form = form
        self.findings: list[Finding] = []
        texts = [text for entries in form.lists for text in entries.texts]
        names_experts = any(NUMBERED_EXPERT.search(text) for text in texts)
        # without an entry that numbers experts, one of them speaks for all
        self._experts = num_experts if names_experts else min(num_experts, 1)

    def by_layer(self, param: Param, rules: Sequence[Rule]) -> list[tuple[Assigned, int]]:
        """(scheme, bit mask of layers) pairs that cover the parameter's layers."""
        if not self.form.lists and not self.form.forced:
            modules = self.modules(param, rules, layers_in(param.layers)[0])
            return [(self.form.assign(modules.all, param.is_stacked), param.layers)]
        masks: dict[tuple[str, str], tuple[Assigned, int]] = {}
        torn: list[int] = []
        for layer in layers_in(param.layers):
            modules = self.modules(param, rules, layer)
            found, is_torn = self._decide(modules, param.is_stacked)
            if is_torn:
                torn.append(layer)
            key = (found.scheme.name, found.entry)
            masks[key] = (found, masks.get(key, (found, 0))[1] | 1 << layer)
        if torn:
            self.findings.append(_torn(self.form, param, rules, torn))
        return list(_by_scheme(masks.values()))

    def modules(self, param: Param, rules: Sequence[Rule], layer: int) -> Modules:
        primary = [rule for rule in rules if not rule.is_alternative]
        fused = [module_of(param.name, layer)]
        whole = (rule for rule in rules if rule.is_alternative and rule.expert is None)
        fused += [module_of(rule.source, layer) for rule in whole]
        parts = [name for rule in primary for name in self._numbered(rule.source, layer)]
        return Modules(tuple(dict.fromkeys(fused)), tuple(dict.fromkeys(parts)))

    def _numbered(self, pattern: str, layer: int) -> Iterator[str]:
        name = module_of(pattern, layer)
        if "{expert}" not in name:
            yield name
            return
        for expert in range(self._experts):
            yield name.replace("{expert}", str(expert))

    def _decide(self, modules: Modules, is_expert: bool) -> tuple[Assigned, bool]:
        """The scheme, and whether the exclude list tears the parts apart."""
        forced = self.form.force(modules.all, is_expert)
        if forced is not None:
            return forced, False
        whole = self.form.excluded.find_any(modules.fused)
        hits = [self.form.excludes(name) for name in modules.parts]
        entry = whole or next(filter(None, hits), None)
        if entry is None:
            found = self.form.assign(modules.all, is_expert)
            return found, self._is_divided(modules, is_expert)
        is_torn = whole is None and None in hits
        return Assigned(self.form.plain, f"{self.form.excluded.field} entry {entry!r}"), is_torn

    def _is_divided(self, modules: Modules, is_expert: bool) -> bool:
        """Whether include lists give the parts different schemes and do not name the whole."""
        if all(row.included is None for row in self.form.rows):
            return False
        if self.form.assign(modules.fused, is_expert).scheme != self.form.plain:
            return False
        return len({self.form.assign((p,), is_expert).scheme.name for p in modules.parts}) > 1


def _by_scheme(found: Iterable[tuple[Assigned, int]]) -> Iterator[tuple[Assigned, int]]:
    """Layers of one scheme together: which of several entries named them does not divide them."""
    masks: dict[str, tuple[Assigned, int]] = {}
    for assigned, mask in found:
        first, before = masks.get(assigned.scheme.name, (assigned, 0))
        masks[assigned.scheme.name] = (first, before | mask)
    yield from masks.values()


def module_of(pattern: str, layer: int) -> str:
    """The dotted name of a module, without its leaf."""
    name = pattern.replace("{layer}", str(layer))
    for leaf in (".{leaf}", "_{leaf}", "{_leaf}", ".weight"):
        name = name.removesuffix(leaf)
    return re.sub(r"\.w(13|2)$", "", name)


def _torn(form: Format, param: Param, rules: Sequence[Rule], layers: list[int]) -> Finding:
    parts = [rule.source for rule in rules if not rule.is_alternative]
    names = ", ".join(source.replace(".{leaf}", "") for source in parts)
    fields = [entries.field for entries in form.lists] or ["the exclude list"]
    field = " or ".join(dict.fromkeys(fields))
    return finding(
        "LS212",
        param.name,
        f"layers {compact(layers)}: {field} names some but not all of {names}, which share one "
        f"parameter",
        fix=f"list all of them in {field}, or none",
        pattern=param.name,
        count=len(layers),
        evidence={"layers": compact(layers)},
    )


def check_lists(form: Format, families: Sequence[Family], num_experts: int) -> list[Finding]:
    """Entries of include and exclude lists that mean no module of the model, target or draft."""
    findings = []
    assigner = Assigner(form, num_experts)
    for entries in form.lists:
        used = matched(entries, _all_modules(assigner, families))
        idle = [text for text in entries.texts if text not in used]
        if idle:
            findings.append(_idle(entries.field, idle, len(entries.texts)))
    return findings


def _all_modules(assigner: Assigner, families: Sequence[Family]) -> Iterator[str]:
    for family in families:
        rules = rules_of(family)
        for param in family.params:
            own = rules[param.name]
            for layer in layers_in(param.layers) if param.stage == "layer" else [0]:
                yield from assigner.modules(param, own, layer).all


def rules_of(family: Family) -> dict[str, list[Rule]]:
    """Rules by parameter; one that no rule names keeps its name in the files."""
    rules: dict[str, list[Rule]] = {param.name: [] for param in family.params}
    for rule in family.rules:
        rules[rule.target].append(rule)
    return {name: own or [Rule(name, name)] for name, own in rules.items()}


def _idle(field: str, texts: list[str], total: int) -> Finding:
    return finding(
        "LS213",
        field,
        f"{len(texts):,} of {total:,} entries of {field} mean no module of this model: "
        f"{', '.join(texts[:5])}{' …' if len(texts) > 5 else ''}",
        fix="check their spelling if these modules should be left unquantised",
        level="warning" if len(texts) == total else "note",
        count=len(texts),
        example=texts[0],
        evidence={"never_matched": len(texts), "entries": total, "examples": texts[:20]},
    )
