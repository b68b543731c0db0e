"""Plans of eleven published checkpoints, from their recorded headers, at their usual layouts."""

from collections import Counter
from collections.abc import Iterator
from functools import cached_property

import pytest
from conftest import PACKS, open_pack
from support.expected_skips import Loaded, draft_skip, target_skip
from support.parameter_table import Decoder, Stock, draft_parameters, nbytes, target_parameters
from support.published import STORED_DRAFTS, WITHOUT_FUSED_EXPERTS, Case, cases_of

from loadscope.loader.outcomes import rank_skips
from loadscope.loader.plan import Options, Plan, make_plan
from loadscope.loader.topology import Layout
from loadscope.loader.views import as_json, parameters, rank_row, totals

# (code, pattern): why it is right to warn
Warnings = dict[tuple[str, str], str]
ATTENTION, EXPERT = "model.layers.{layer}.self_attn.", "model.layers.{layer}.mlp.experts.{expert}."
NO_KV_SCALES = "the draft is built unquantised: it has no KV scales"
NARROWED = "stored in F32, kept in BF16"
JUSTIFIED_WARNINGS: dict[tuple[str, str], Warnings] = {
    ("deepseek-r1-0528-fp4", "draft"): {
        ("LS301", ATTENTION + "k_proj.k_scale"): NO_KV_SCALES,
        ("LS301", ATTENTION + "v_proj.v_scale"): NO_KV_SCALES,
    },
    ("deepseek-r1-w4afp8", "target"): {
        ("LS405", EXPERT + "w1.input_scale"): NARROWED,
        ("LS405", EXPERT + "w2.input_scale"): NARROWED,
        ("LS405", EXPERT + "w3.input_scale"): NARROWED,
    },
}
CASES = [case for pack in PACKS for case in cases_of(pack)]


class Planned:
    """A case, its plan, and what was written down about both."""

    def __init__(self, case: Case) -> None:
        checkpoint = open_pack(case.pack)
        assert checkpoint.config is not None
        self.case = case
        self.names = checkpoint.tensors
        self.config = checkpoint.config
        self.plan = make_plan(checkpoint, case.layout, case.options)

    @property
    def warnings(self) -> Warnings:
        role = "draft" if self.case.is_draft else "target"
        return JUSTIFIED_WARNINGS.get((self.case.pack, role), {})

    @cached_property
    def unknown(self) -> set[str]:
        """Names that a justified warning says have no destination."""
        patterns = {pattern for code, pattern in self.warnings if code == "LS301"}
        tails = {pattern.removeprefix("model.layers.{layer}.") for pattern in patterns}
        return {name for name in self.names if name.split(".", 3)[-1] in tails}

    @cached_property
    def reasons(self) -> dict[str, str | None]:
        """Every tensor with the reason for which no rank loads it."""
        why = draft_skip if self.case.is_draft else target_skip
        found = {name: why(name, self.config) for name in self.names}
        lost = (name for name in self.unknown if found[name] is None)
        return {**found, **dict.fromkeys(lost, "no_destination")}

    @cached_property
    def table(self) -> Decoder:
        case = self.case
        return Decoder(self.config, case.stored, case.layout, fuses_shared=case.fuses_shared)

    def expected_parameters(self, rank: int) -> dict[str, Stock]:
        if self.case.is_draft:
            return draft_parameters(self.table)
        return target_parameters(self.table, self.case.layout.seat(rank))


@pytest.fixture(scope="module", params=CASES, ids=str)
def planned(request: pytest.FixtureRequest) -> Planned:
    """One plan a case; all claims about a case run together, so one is alive at a time."""
    return Planned(request.param)


def edge_ranks(planned: Planned) -> tuple[int, int]:
    """The first and the last: they differ on every axis that is cut."""
    return 0, planned.case.layout.world - 1


def test_a_published_checkpoint_passes_the_proof(planned: Planned) -> None:
    errors = [f.message for f in planned.plan.findings if f.level == "error"]
    assert (planned.plan.verdict, errors) == ("pass", [])


def test_a_published_checkpoint_gives_only_justified_warnings(planned: Planned) -> None:
    findings = [f for f in planned.plan.findings if f.level != "note"]
    assert {(f.code, f.pattern) for f in findings} == set(planned.warnings)


def test_every_tensor_of_a_published_checkpoint_has_one_outcome(planned: Planned) -> None:
    found = totals(planned.plan)
    assert sum(found["outcomes"].values()) == found["tensors"] == len(planned.names)


def test_no_tensor_of_a_published_checkpoint_is_held_or_fails(planned: Planned) -> None:
    outcomes = totals(planned.plan)["outcomes"]
    assert (outcomes["held"], outcomes["failed"]) == (0, 0)


def test_what_no_rank_loads_is_skipped_for_its_reason(planned: Planned) -> None:
    expected = Counter(reason for reason in planned.reasons.values() if reason is not None)
    assert totals(planned.plan)["skips"] == dict(expected)


def test_what_a_rank_leaves_to_others_is_what_the_layout_explains(planned: Planned) -> None:
    case = planned.case
    names = [name for name, reason in planned.reasons.items() if reason is None]
    loaded = Loaded(names, planned.config, keeps_scales=case.stored.experts == "nvfp4")
    for rank in edge_ranks(planned):
        skips = rank_skips(planned.plan, rank)
        expected = loaded.skips(case.layout, case.layout.seat(rank), is_whole=case.is_draft)
        assert {reason: group["count"] for reason, group in skips.items()} == expected


def test_a_rank_reads_what_it_does_not_skip(planned: Planned) -> None:
    loaded = sum(reason is None for reason in planned.reasons.values())
    for rank in edge_ranks(planned):
        away = sum(group["count"] for group in rank_skips(planned.plan, rank).values())
        assert rank_row(planned.plan, rank)["tensors"] == loaded - away


def test_ranks_of_one_stage_hold_equally_many_bytes(planned: Planned) -> None:
    tp_size = planned.case.layout.tp_size
    held = [rank["parameter_bytes"] for rank in as_json(planned.plan)["ranks"]]
    stages = [set(held[start : start + tp_size]) for start in range(0, len(held), tp_size)]
    assert [len(stage) for stage in stages] == [1] * planned.case.layout.pp_size


def test_a_rank_holds_the_published_parameters(planned: Planned) -> None:
    for rank in edge_ranks(planned):
        found = {view.name: (view.dtype, view.shape) for view in parameters(planned.plan, rank)}
        assert found == planned.expected_parameters(rank)


def test_a_rank_holds_the_bytes_of_the_published_parameters(planned: Planned) -> None:
    for rank in edge_ranks(planned):
        expected = sum(nbytes(stock) for stock in planned.expected_parameters(rank).values())
        assert rank_row(planned.plan, rank)["parameter_bytes"] == expected


def refusals() -> Iterator[tuple[str, Options]]:
    """What a published checkpoint cannot be asked for."""
    for pack in PACKS:
        if pack not in STORED_DRAFTS:
            yield pack, Options(draft=True)
        if pack in WITHOUT_FUSED_EXPERTS:
            yield pack, Options(fuse_shared_experts=True)


@pytest.mark.parametrize(("pack", "options"), list(refusals()))
def test_what_a_published_checkpoint_does_not_have_is_refused(pack: str, options: Options) -> None:
    assert make_plan(open_pack(pack), Layout(tp_size=8), options).verdict == "fail"


@pytest.fixture(scope="module")
def refused_tp_32() -> Plan:
    return make_plan(open_pack("deepseek-v3"), Layout(tp_size=32))


def test_tp_32_on_v3_is_refused(refused_tp_32: Plan) -> None:
    assert refused_tp_32.verdict == "fail"


def test_the_refusal_of_tp_32_names_the_cut_inside_a_block(refused_tp_32: Plan) -> None:
    assert {f.code for f in refused_tp_32.findings if f.level == "error"} == {"LS207"}


def test_the_refusal_of_tp_32_names_the_largest_legal_size(refused_tp_32: Plan) -> None:
    errors = [f for f in refused_tp_32.findings if f.level == "error"]
    assert all("16" in f"{f.message} {f.fix}" for f in errors)
