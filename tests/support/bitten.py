"""A published checkpoint in which one tensor at a time is changed, and the plans made of it."""

from collections.abc import Iterator
from functools import cached_property, lru_cache
from random import Random
from typing import Any, NamedTuple

from conftest import open_pack

from loadscope.loader.checkpoint import Checkpoint
from loadscope.loader.findings import Finding
from loadscope.loader.plan import Options, make_plan
from loadscope.loader.topology import Layout
from support.mutations import MUTATIONS, Told
from support.names import is_draft, one_of_each_pattern
from support.published import STORED, STORED_DRAFTS
from support.reduced import reduced
from support.stakes import Asked, elements_at_stake, filled_parameter, need_of, partners_of

LAYOUT = Layout(tp_size=4, ep_size=2)
SEED = 20_251_201
DRAFT_MARK = "eh_proj"  # what makes a layer past the model a draft layer


class Bite(NamedTuple):
    """One kind of change, to be made to every name pattern of a checkpoint in one role."""

    pack: str
    is_draft: bool
    what: str

    def __str__(self) -> str:
        return f"{self.pack} {'draft' if self.is_draft else 'target'} {self.what}"


class Proof(NamedTuple):
    """What a plan said after one tensor was changed, and what it had to say about the tensor."""

    name: str
    verdict: str
    findings: tuple[Finding, ...]
    told: Told | None

    @property
    def gaps(self) -> list[tuple[str, Any]]:
        return [(f.subject, f.evidence["elements"]) for f in self.findings if f.code == "LS501"]

    @property
    def is_told(self) -> bool:
        """Whether a finding says it; a name alone has no count to compare."""
        if self.told is None:
            return True
        codes, subject, elements = self.told
        about = [f for f in self.findings if f.code in codes and f.subject == subject]
        return any(elements in (None, f.evidence.get("elements")) for f in about)

    @property
    def accused(self) -> set[str]:
        return {f.subject for f in self.findings if f.level == "error"}


def prove_changed(
    checkpoint: Checkpoint, name: str, what: str, layout: Layout, options: Options, random: Random
) -> Proof:
    """The plan of a checkpoint in which one tensor is changed."""
    changed, told = MUTATIONS[what](checkpoint, name, random)
    plan = make_plan(changed, layout, options)
    return Proof(name, plan.verdict, plan.findings, told)


@lru_cache(maxsize=2)  # bites of one pack follow one another
def reduced_pack(name: str) -> Checkpoint:
    return reduced(open_pack(name))


class Bitten:
    """A reduced checkpoint, and what has to be said when one of its tensors is changed."""

    def __init__(self, bite: Bite) -> None:
        stored = (STORED_DRAFTS if bite.is_draft else STORED)[bite.pack]
        self.what = bite.what
        self.removes = bite.what in ("deleted", "renamed")
        self.checkpoint = reduced_pack(bite.pack)
        assert self.checkpoint.config is not None
        self.layers = self.checkpoint.config["num_hidden_layers"]
        self.asked = Asked(self.checkpoint.config, stored.experts, bite.is_draft, LAYOUT)

    @cached_property
    def proofs(self) -> list[Proof]:
        """Each name pattern of the role changed, in a plan of that role."""
        role = self.asked.is_draft
        return list(self.prove(draft_names=role, draft_plan=role))

    def prove(self, *, draft_names: bool, draft_plan: bool) -> Iterator[Proof]:
        random, options = Random(f"{SEED} {self.what}"), Options(draft=draft_plan)
        names = [n for n in self.checkpoint.tensors if is_draft(n, self.layers) == draft_names]
        for name in one_of_each_pattern(names, SEED).values():
            yield prove_changed(self.checkpoint, name, self.what, LAYOUT, options, random)

    def unmarks(self, name: str) -> bool:
        """Whether the change takes the draft layer its mark; then its parts are not looked at."""
        return self.removes and DRAFT_MARK in name

    @property
    def explained(self) -> list[Proof]:
        return [proof for proof in self.proofs if not self.unmarks(proof.name)]

    @property
    def needed(self) -> list[Proof]:
        return [proof for proof in self.explained if need_of(proof.name, self.asked) == "needed"]

    def verdict(self, name: str) -> str:
        """A tensor that may be missing may not be wrong; one without a use may be anything."""
        need = need_of(name, self.asked)
        is_fatal = need == "needed" or (need == "optional" and not self.removes)
        return "fail" if is_fatal else "pass"

    def must_tell(self, proof: Proof) -> bool:
        """Nobody looks at names outside the draft layer for it, or into what has no use."""
        if self.what == "renamed":
            told = proof.told
            return told is not None and (not self.asked.is_draft or is_draft(told[1], self.layers))
        return need_of(proof.name, self.asked) != "unused"

    def expected_gap(self, name: str) -> list[tuple[str, int]]:
        shapes = {n: tensor.shape for n, tensor in self.checkpoint.tensors.items()}
        elements = elements_at_stake(name, shapes, self.asked)
        return [(filled_parameter(name, self.asked), elements)]

    def may_be_accused(self, name: str) -> set[str]:
        """The tensor, its parameter, and what waits for it in vain."""
        return {name, filled_parameter(name, self.asked)} | partners_of(name)
