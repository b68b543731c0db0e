"""What the roles of one process take from a checkpoint, and which tensors belong together.

A group is every tensor that fills or feeds one module: q_a, kv_a and their scales; gate and up of
one expert with theirs. A new weight under an old scale is a valid number and a wrong one, so
a group changes as a whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loadscope.loader.checkpoint import Tensor
from loadscope.loader.outcomes import routed
from loadscope.loader.plan import Plan
from loadscope.loader.resolve import Tail
from loadscope.loader.topology import layers_in


class Module(NamedTuple):
    """One module of one role in one layer; `expert` None: all experts, or none."""

    role: str
    table: str
    layer: int
    expert: int | None

    @property
    def name(self) -> str:
        """The parameter's name without its leaf."""
        module = self.table
        for leaf in (".{leaf}", "_{leaf}", ".weight"):
            module = module.removesuffix(leaf)
        return module.replace("{layer}", str(self.layer))


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors of one module, in the plan's order. One that is alone is complete when it comes."""

    name: str
    members: tuple[str, ...]

    @property
    def is_trivial(self) -> bool:
        return len(self.members) == 1


class Expected:
    """Every tensor of a checkpoint with which any of the roles reaches a parameter.

    `tensors`: by name. `roles`: which roles take it. `groups`, and `group_of`: the index of
    a tensor's group. Raises ValueError if no plan is given, a role has two, or one places nothing.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        _check(plans)
        self.plans = tuple(plans)
        self.tensors: dict[str, Tensor] = {}
        self.roles: dict[str, tuple[str, ...]] = {}
        modules = Modules()
        for plan in plans:
            self._add(plan, modules)
        self.groups = tuple(modules.groups())
        self.group_of = {
            name: number for number, group in enumerate(self.groups) for name in group.members
        }
        self.bytes = sum(tensor.stop - tensor.start for tensor in self.tensors.values())

    @property
    def count(self) -> int:
        return len(self.tensors)

    def _add(self, plan: Plan, modules: "Modules") -> None:
        alone = (plan.role,)
        for tail, _source, _target in routed(plan):
            for layer in layers_in(tail.routed):
                name = tail.name(layer)
                others = self.roles.get(name)
                self.roles[name] = alone if others is None else (*others, plan.role)
                self.tensors[name] = plan.tensors[name]
                modules.add_tail(plan, tail, layer)

    def fits(self, plans: Sequence[Plan]) -> bool:
        """Whether these plans expect the same: the same names, dtypes and shapes, used alike."""
        return len(plans) == len(self.plans) and all(map(_expect_alike, self.plans, plans))


def _expect_alike(one: Plan, other: Plan) -> bool:
    if one is other:
        return True
    facts = [(plan.layout, plan.options, plan.targets, plan.sources) for plan in (one, other)]
    return facts[0] == facts[1] and one.names_facts == other.names_facts


def _check(plans: Sequence[Plan]) -> None:
    roles = [plan.role for plan in plans]
    if not roles or len(set(roles)) < len(roles):
        raise ValueError(f"plans of the roles {roles}; expected one plan of each role")
    for plan in plans:
        if not plan.shapes:
            raise ValueError(f"the plan of {plan.label} places nothing: see its findings")


def _kinds(plan: Plan, tail: Tail) -> list[tuple[str, int | None]]:
    """Table and expert of every use of a tail, each once."""
    assert tail.source is not None
    kinds: dict[tuple[str, int | None], None] = {}
    for index in plan.uses(tail.source):
        source = plan.sources[index]
        assert source.target is not None
        expert = tail.expert if source.experts else None
        kinds[plan.targets[source.target].table, expert] = None
    return list(kinds)


class Modules:
    """Tensors by module; modules that a tensor has in common become one group."""

    def __init__(self) -> None:
        self._members: dict[Module, list[str]] = {}
        self._home: dict[str, Module] = {}
        self._joined: dict[Module, Module] = {}
        self._kinds: dict[int, list[tuple[str, int | None]]] = {}

    def add_tail(self, plan: Plan, tail: Tail, layer: int) -> None:
        """A tensor in one layer, to every module that it fills or feeds."""
        kinds = self._kinds.get(id(tail))
        if kinds is None:
            kinds = self._kinds[id(tail)] = _kinds(plan, tail)
        self._add(tail.name(layer), [Module(plan.role, table, layer, e) for table, e in kinds])

    def _add(self, name: str, modules: Sequence[Module]) -> None:
        home = self._home.get(name)
        if home is None:
            home = self._home[name] = modules[0]
            self._members.setdefault(home, []).append(name)
        for other in modules:
            if other != home:
                self._members.setdefault(other, [])
                self._join(home, other)

    def groups(self) -> Iterator[Group]:
        self._join_stacked()
        together: dict[Module, list[Module]] = {}
        for module in self._members:
            together.setdefault(self._root(module), []).append(module)
        for modules in together.values():
            members = [name for module in modules for name in self._members[module]]
            yield Group(_text(modules), tuple(members))

    def _join(self, one: Module, other: Module) -> None:
        first, second = self._root(one), self._root(other)
        if first != second:
            self._joined[second] = first

    def _root(self, module: Module) -> Module:
        while module in self._joined:
            module = self._joined[module]
        return module

    def _join_stacked(self) -> None:
        """A tensor of all experts belongs to the group of each."""
        whole = {module for module in self._members if module.expert is None}
        for module in list(self._members):
            everything = module._replace(expert=None)
            if module.expert is not None and everything in whole:
                self._join(everything, module)


def _text(modules: Sequence[Module]) -> str:
    names = " + ".join(sorted({module.name for module in modules}))
    expert = modules[0].expert
    return names if len(modules) > 1 or expert is None else f"{names} expert {expert}"
