"""Buckets of an update against what is expected: what came, what is open, what is refused."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from loadscope.loader.arrival_faults import ArrivalError, Faults
from loadscope.loader.checkpoint import Tensor
from loadscope.loader.covering import Answer, Covering, Slot
from loadscope.loader.groups import Expected
from loadscope.loader.open_groups import OpenGroups

__all__ = ["Admitted", "ArrivalError", "Arrivals", "Expected"]


@dataclass(frozen=True, slots=True)
class Admitted:
    """What one bucket brought.

    `accepted`: names that a role takes; `roles`: the same by role. `ignored`: other names, with
    the reason or the pattern that they fit. `opened`: groups that are open since this bucket;
    `completed`: groups that it made whole.
    """

    bucket: int
    accepted: tuple[str, ...]
    ignored: Mapping[str, str]
    roles: Mapping[str, tuple[str, ...]]
    opened: tuple[str, ...]
    completed: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All tensors of the bucket."""
        return (*self.accepted, *self.ignored)


@dataclass(slots=True)
class _Came:
    """What came: the bucket of each name; which name brought a loaded tensor's kind (`own`);
    which name of another kind filled a slot. `whole`: loaded tensors that are replaced by it.
    """

    names: dict[str, int] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    slots: dict[Slot, str] = field(default_factory=dict)
    whole: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Bucket(_Came):
    """The same for one bucket that does not count yet; `begun`: loaded tensors that it replaces
    in part; `stands_for`: what names of another spelling or kind replace.
    """

    number: int = 0
    roles: dict[str, list[str]] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    begun: dict[str, None] = field(default_factory=dict)
    stands_for: dict[str, list[str]] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)


class Arrivals:
    """All tensors of an update by name, dtype and shape; a bucket is taken as a whole or not.

    `scope`: full expects every tensor, partial only whole groups. `ignore`: globs of names outside
    the plans that may come. Not safe for several threads at once.
    """

    def __init__(
        self,
        expected: Expected,
        *,
        scope: Literal["full", "partial"],
        ignore: Sequence[str] = (),
    ) -> None:
        self.expected = expected
        self.scope = scope
        self.ignored: dict[str, int] = {}
        self.received_bytes = 0
        self._ignore = tuple(ignore)
        self._coverings = {plan.role: Covering(plan) for plan in expected.plans}
        self._came = _Came()
        self._stands_for: dict[str, list[str]] = {}
        self._touched: set[str] = set()
        self._groups = OpenGroups(expected.groups)

    @property
    def received(self) -> int:
        """Expected tensors that came, themselves or as parts of others; `received_bytes` are
        theirs in the loaded checkpoint.
        """
        return len(self._came.whole)

    @property
    def arrived(self) -> Mapping[str, int]:
        """Bucket of every name that came, of the ignored ones too."""
        return self._came.names

    @property
    def roles_touched(self) -> tuple[str, ...]:
        """Roles that took anything, in the order of their plans."""
        return tuple(role for role in self._coverings if role in self._touched)

    @property
    def open_count(self) -> int:
        return len(self._groups)

    def missing(self) -> list[str]:
        """Expected tensors that did not come, sorted; a partial update may leave any out."""
        if self.scope == "partial":
            return []
        return sorted(self.expected.tensors.keys() - self._came.whole.keys())

    def covers(self, name: str) -> tuple[str, ...]:
        """Loaded tensors that an arrived name replaces, alone or with others that came."""
        own = (name,) if self._came.own.get(name) == name else ()
        return (*own, *self._stands_for.get(name, ()))

    def open_groups(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Groups of which a part has come, oldest first: `group`, `have`, `waits_for`,
        `since_bucket`.
        """
        return self._groups.rows(self._came.whole.keys(), limit)

    def counts(self, limit: int | None = None) -> dict[str, Any]:
        """`total` (of a partial update: those begun), `complete`, `split_across_buckets`, and the
        first `limit` of the `open` ones.
        """
        numbers = self._groups.numbers(is_full=self.scope == "full")
        return {**numbers, "open": self.open_groups(limit)}

    def admit(self, bucket: int, tensors: Mapping[str, Tensor]) -> Admitted:
        """Take all tensors of a bucket. Raises ArrivalError, and takes none, if one is refused."""
        new = _Bucket(number=bucket)
        for name, tensor in tensors.items():
            self._judge(name, tensor, new)
        new.faults.raise_any(bucket)
        return self._commit(new)

    def _judge(self, name: str, tensor: Tensor, new: _Bucket) -> None:
        if name in self._came.names:
            self._refuse_again(name, name, new)
            return
        new.names[name] = new.number
        loaded = self.expected.tensors.get(name)
        if loaded is not None and loaded[:2] == tensor[:2]:
            for role in self.expected.roles[name]:
                new.roles.setdefault(role, []).append(name)
                self._replace(name, name, self._coverings[role], new)
            return
        answers = {role: c.ask(name, *tensor[:2]) for role, c in self._coverings.items()}
        taken = [role for role, answer in answers.items() if answer.is_taken]
        for role in taken:
            new.roles.setdefault(role, []).append(name)
            self._take(name, answers[role], self._coverings[role], new)
        if not taken:
            self._leave(name, answers, new)

    def _leave(self, name: str, answers: Mapping[str, Answer], new: _Bucket) -> None:
        """A tensor that no role takes: ignored for a reason, or refused."""
        wrong = next((a.wrong for a in answers.values() if a.wrong is not None), None)
        if wrong is not None:
            new.faults.add_wrong(name, wrong)
            return
        lost = next((r for r, a in answers.items() if a.reason == "no_destination"), None)
        if lost is None:
            new.ignored[name] = self._reason(answers)
            return
        pattern = next((glob for glob in self._ignore if fnmatchcase(name, glob)), None)
        if pattern is None and any(name in plan.tensors for plan in self.expected.plans):
            # the loaded checkpoint has it too: its plan has told
            pattern = "no_destination"
        if pattern is not None:
            new.ignored[name] = pattern
            return
        tail, layer = answers[lost].tail, answers[lost].layer
        names = self._coverings[lost].names
        new.faults.add_unknown(name, tail.pattern, lambda: names.nearest(tail, layer))

    def _reason(self, answers: Mapping[str, Answer]) -> str:
        """Why no role takes it; a role that has the layer knows better than one that has not."""
        own = [
            answer.reason
            for role, answer in answers.items()
            if answer.reason != self._coverings[role].plan.beyond_reason
        ]
        return str([*own, *(answer.reason for answer in answers.values())][0])

    def _take(self, name: str, answer: Answer, covering: Covering, new: _Bucket) -> None:
        loaded = covering.same(answer.tail, answer.layer)
        if loaded is not None:
            self._replace(name, loaded, covering, new)
        else:
            self._fill(name, covering.supplies(answer.tail, answer.layer), covering, new)

    def _replace(self, name: str, loaded: str, covering: Covering, new: _Bucket) -> None:
        """A tensor of the same kind as a loaded one."""
        earlier = self._owner(loaded, new)
        if earlier is None and (self._came.slots or new.slots):
            fillers = (self._filler(slot, new) for slot in covering.fills(loaded))
            earlier = next((filler for filler in fillers if filler is not None), None)
        if earlier is not None and earlier != name:
            self._refuse_again(name, earlier, new)
            return
        new.own[loaded] = name
        new.whole[loaded] = None
        if name != loaded:
            new.stands_for[name] = [loaded]

    def _fill(self, name: str, slots: Iterable[Slot], covering: Covering, new: _Bucket) -> None:
        """A tensor of another kind: loaded ones are replaced once all of their slots are filled."""
        begun: dict[str, None] = {}
        for slot in slots:
            holders = covering.holders(slot)
            owners = (self._owner(h, new) for h in holders if slot in covering.fills(h))
            earlier = next(filter(None, (self._filler(slot, new), *owners)), None)
            if earlier is not None:
                self._refuse_again(name, earlier, new)
                return
            new.slots[slot] = name
            begun |= dict.fromkeys(holders)
        for loaded in begun.keys() - self._came.whole.keys() - new.whole.keys():
            fillers = {self._filler(slot, new) for slot in covering.needs(loaded)}
            if None in fillers:
                new.begun[loaded] = None
                continue
            new.whole[loaded] = None
            for filler in fillers:
                new.stands_for.setdefault(str(filler), []).append(loaded)

    def _owner(self, loaded: str, new: _Bucket) -> str | None:
        """The arrived name that brought a loaded tensor's kind."""
        earlier = new.own.get(loaded)
        return earlier if earlier is not None else self._came.own.get(loaded)

    def _filler(self, slot: Slot, new: _Bucket) -> str | None:
        earlier = new.slots.get(slot)
        return earlier if earlier is not None else self._came.slots.get(slot)

    def _refuse_again(self, name: str, earlier: str, new: _Bucket) -> None:
        new.faults.add_again(name, earlier, self._came.names.get(earlier, new.number))

    def _commit(self, new: _Bucket) -> Admitted:
        fresh = [loaded for loaded in new.whole if loaded not in self._came.whole]
        begun = [loaded for loaded in new.begun if loaded not in new.whole]
        for loaded in fresh:
            tensor = self.expected.tensors[loaded]
            self.received_bytes += tensor.stop - tensor.start
        self._came.names |= new.names
        self._came.own |= new.own
        self._came.slots |= new.slots
        self._came.whole |= new.whole
        for name, replaced in new.stands_for.items():
            self._stands_for.setdefault(name, []).extend(replaced)
        for reason in new.ignored.values():
            self.ignored[reason] = self.ignored.get(reason, 0) + 1
        self._touched |= new.roles.keys()
        group_of = self.expected.group_of
        opened, completed = self._groups.take(
            new.number, map(group_of.__getitem__, fresh), map(group_of.__getitem__, begun)
        )
        return Admitted(
            bucket=new.number,
            accepted=tuple(name for name in new.names if name not in new.ignored),
            ignored=new.ignored,
            roles={role: tuple(names) for role, names in new.roles.items()},
            opened=tuple(opened),
            completed=tuple(completed),
        )
