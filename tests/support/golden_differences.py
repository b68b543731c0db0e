"""Where this loader differs from the reference on purpose, how often, and why."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from support.golden_compare import Deviation
from support.golden_events import expected_destinations, expected_outcome
from support.golden_records import like_awq_marlin, records
from support.golden_values import larger_of_gate_and_up, larger_scale, rescaled_codes

Check = Callable[[Deviation], bool]


@dataclass(frozen=True, slots=True)
class Difference:
    """One intended difference: the facts that show it, and what must be found instead.

    `records`, `names` and `facts` are regular expressions of the whole text; `name` is as in the
    list of the reference's traps where it has one. `count` is the number of facts over all records.
    """

    name: str
    what: str
    why: str
    records: str
    names: str
    facts: str
    found: Check
    count: int

    def covers(self, deviation: Deviation) -> bool:
        return (
            re.fullmatch(self.records, deviation.record) is not None
            and re.fullmatch(self.names, deviation.name) is not None
            and re.fullmatch(self.facts, deviation.fact) is not None
            and self.found(deviation)
        )


def explanations(deviation: Deviation) -> list[Difference]:
    """Rows that explain a deviation; a right one has exactly one."""
    return [row for row in DIFFERENCES if row.covers(deviation)]


def unexplained(deviations: Iterable[Deviation], *facts: str) -> list[Deviation]:
    """Deviations in the given facts, or in any, that not exactly one row explains."""
    chosen = [d for d in deviations if not facts or d.fact in facts]
    return [d for d in chosen if len(explanations(d)) != 1]


def counts(deviations: Iterable[Deviation]) -> Counter[tuple[str, str]]:
    """How often every row is met."""
    return Counter((row.name, row.what) for d in deviations for row in explanations(d))


def _is(**found: Any) -> Check:
    """What must be found, by fact."""
    return lambda deviation: deviation.found == found[deviation.fact]


def _is_hash(compute: Callable[[str, str], str]) -> Check:
    """The found sha256 is that of a value computed without the loader."""
    return lambda deviation: deviation.found == compute(deviation.record, deviation.name)


def _is_not_recorded(deviation: Deviation) -> bool:
    return deviation.found != deviation.recorded


def _is_as_on_one_stage(deviation: Deviation) -> bool:
    """What the record of an undivided model says of the name."""
    whole = records()[re.sub("__pp2r[01]__", "__pp1r0__", deviation.record)]
    return deviation.found == expected_outcome(whole, deviation.name)


def _is_as_in_awq_marlin(deviation: Deviation) -> bool:
    record = records()[like_awq_marlin(deviation.record)]
    recorded: dict[str, Callable[[], Any]] = {
        "parameter": lambda: deviation.name in record["params"],
        "outcome": lambda: expected_outcome(record, deviation.name),
        "destination": lambda: expected_destinations(record, deviation.name),
    }
    return deviation.found == recorded[deviation.fact]()


_NORM = {"param": "model.shared_head.norm.weight", "part": None, "expert": None}

DIFFERENCES = (
    Difference(
        "A18",
        what="the draft's head norm on a stage that is not the last is loaded",
        why="the reference takes it for the target's last norm, by a part of its name",
        records=r".*__pp2r0__nextn1__.*",
        names=r"model\.(layers\.3\.)?shared_head\.norm\.weight",
        facts="outcome|destination|unwritten|fill",
        found=_is(outcome=("loaded", None), destination=[_NORM], unwritten=0, fill="checkpoint"),
        count=4,
    ),
    Difference(
        "A19",
        what="lm_head on a stage that is not the last is skipped as another stage's",
        why="the reference warns there that it knows no such parameter",
        records=r".*__pp2r0__nextn0__.*",
        names=r"lm_head\.weight",
        facts="outcome",
        found=_is(outcome=("skipped", "pp_edge")),
        count=16,
    ),
    Difference(
        "A25",
        what="a fused weight of two per-tensor scales is rescaled to the larger",
        why="the reference keeps one scale of two, and half of the weight is wrong under it",
        records=r"v3-fp8-tensor.*",
        names=r".*\.fused_qkv_a_proj_with_mqa\.weight",
        facts="sha256",
        found=_is_hash(rescaled_codes),
        count=32,
    ),
    Difference(
        "A25",
        what="the fused scale is the larger half's",
        why="the reference keeps one scale of two and loses the other",
        records=r"v3-fp8-tensor.*",
        names=r".*\.fused_qkv_a_proj_with_mqa\.(weight|input)_scale",
        facts="sha256",
        found=_is_hash(larger_scale),
        count=30,
    ),
    Difference(
        "A25",
        what="two per-tensor scales of one fused parameter that differ are reported",
        why="the reference loses one of them without a word",
        records=r"v3-fp8-tensor.*",
        names=r"LS603 .*\.q_a_proj\.(weight|input)_scale",
        facts="finding",
        found=_is(finding="warning"),
        count=26,
    ),
    Difference(
        "w13_input_scale",
        what="the activation scale of gate and up is the larger one",
        why="the reference keeps whichever comes last, and its threads make that a matter of luck",
        records=r"v3-(fp8-tensor|nvfp4).*",
        names=r".*\.experts\.w13_input_scale",
        facts="sha256",
        found=_is_hash(larger_of_gate_and_up),
        count=50,
    ),
    Difference(
        "w13_input_scale",
        what="activation scales of gate and up that differ are reported",
        why="the reference loses one of them without a word",
        records=r"v3-(fp8-tensor|nvfp4).*",
        names=r"LS603 .*\.gate_proj\.input_scale",
        facts="finding",
        found=_is(finding="warning"),
        count=35,
    ),
    Difference(
        "D2",
        what="w_scale of an int8 layer stays 1.0",
        why="the reference, started without a w_scale, makes the parameter itself the w_scale",
        records=r"v3-int8-channel@cuda\+wsnone.*",
        names=r".*\.w_scale",
        facts="derived|scalar",
        found=_is(derived=None, scalar=1.0),
        count=6,
    ),
    Difference(
        "D3",
        what="kv_b_proj.weight is as it was stored after the derived tensors were made of it",
        why="the reference's step to fnuz clears the bytes of -0 in the parameter itself",
        records=r".*@hipfnuz__.*",
        names=r".*\.kv_b_proj\.weight",
        facts="after_post",
        found=_is_not_recorded,
        count=10,
    ),
    Difference(
        "draft embed and head",
        what="the draft's embedding and head are not allocated",
        why="no checkpoint fills them: an engine replaces them by the target's",
        records=r".*__nextn1__.*",
        names=r"model\.embed_tokens\.weight|lm_head\..*",
        facts="parameter",
        found=_is(parameter=False),
        count=182,
    ),
    Difference(
        "blockscale_swizzled",
        what="the swizzled block scales of NVFP4 experts are not allocated",
        why="no checkpoint fills them: they are an engine's later layout",
        records=r"v3-nvfp4.*",
        names=r".*\.w(13|2)_blockscale_swizzled",
        facts="parameter",
        found=_is(parameter=False),
        count=56,
    ),
    Difference(
        "extras",
        what="a name that no parameter waits for is skipped for that reason on every stage",
        why="the reference drops it as another stage's without having looked at it",
        records=r"v3-bf16-extras__.*__pp2r[01]__nextn0__.*",
        names=r".*\.(bias|[kv]_scale|inv_freq)|.*\.some_unknown\.weight",
        facts="outcome",
        found=_is_as_on_one_stage,
        count=15,
    ),
    Difference(
        "draft without draft tensors",
        what="is refused",
        why="the reference loads nothing in silence and derives from memory never written",
        records=r"v2lite-bf16__.*__nextn1__.*",
        names="",
        facts="refused",
        found=_is(refused=True),
        count=1,
    ),
    Difference(
        "v3-awq",
        what="experts are loaded as the records of awq_marlin say",
        why="the reference has no expert method for plain awq; where no one orders that, this "
        "loader takes the tree of awq_marlin",
        records=r"v3-awq__.*",
        names=r".*\.mlp\.experts\..*",
        facts="parameter|outcome|destination",
        found=_is_as_in_awq_marlin,
        count=2288,
    ),
    Difference(
        "v3-awq",
        what="so is a shared expert that is fused with them",
        why="it takes a slot of theirs",
        records=r"v3-awq__.*__sef1",
        names=r".*\.mlp\.shared_experts\..*",
        facts="outcome|destination",
        found=_is_as_in_awq_marlin,
        count=54,
    ),
)
