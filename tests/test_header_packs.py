"""Plans of three published checkpoints, from their recorded headers, over many layouts."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import PACKS
from support.safetensors_files import expand_pack

from loadscope.loader.checkpoint import Checkpoint, open_checkpoint
from loadscope.loader.findings import Finding
from loadscope.loader.plan import Plan, make_plan
from loadscope.loader.topology import Layout
from loadscope.loader.views import as_json, totals

LAYOUTS = {
    "tp 1": Layout(),
    "tp 8": Layout(tp_size=8),
    "tp 16": Layout(tp_size=16),
    "tp 8 ep 8": Layout(tp_size=8, ep_size=8),
    "tp 4 pp 2": Layout(tp_size=4, pp_size=2),
    "tp 2 pp 4": Layout(tp_size=2, pp_size=4),
}
JUSTIFIED_WARNINGS: dict[str, set[str]] = {}
CASES = [(pack, layout) for pack in PACKS for layout in LAYOUTS]


class Plans:
    """Plans made once each, since several claims look at the same one."""

    def __init__(self, packs: dict[str, Checkpoint]) -> None:
        self.packs = packs
        self.of = cache(self._make)

    def _make(self, pack: str, layout: str) -> Plan:
        return make_plan(self.packs[pack], LAYOUTS[layout])


@pytest.fixture(scope="module")
def plans(packs: dict[str, Checkpoint]) -> Plans:
    return Plans(packs)


@pytest.mark.parametrize(("pack", "layout"), CASES)
def test_a_published_checkpoint_passes_the_proof(pack: str, layout: str, plans: Plans) -> None:
    assert plans.of(pack, layout).verdict == "pass"


@pytest.mark.parametrize(("pack", "layout"), CASES)
def test_a_published_checkpoint_gives_only_justified_warnings(
    pack: str, layout: str, plans: Plans
) -> None:
    findings = plans.of(pack, layout).findings
    assert {f.code for f in findings if f.level != "note"} == JUSTIFIED_WARNINGS.get(pack, set())


@pytest.mark.parametrize(("pack", "layout"), CASES)
def test_every_tensor_of_a_published_checkpoint_has_one_outcome(
    pack: str, layout: str, plans: Plans, packs: dict[str, Checkpoint]
) -> None:
    found = totals(plans.of(pack, layout))
    assert sum(found["outcomes"].values()) == found["tensors"] == len(packs[pack].tensors)


@pytest.mark.parametrize(("pack", "layout"), CASES)
def test_only_the_draft_layer_of_a_published_checkpoint_is_skipped(
    pack: str, layout: str, plans: Plans, packs: dict[str, Checkpoint]
) -> None:
    config = packs[pack].config
    assert config is not None
    prefix = f"model.layers.{config['num_hidden_layers']}."
    draft = sum(name.startswith(prefix) for name in packs[pack].tensors)
    assert totals(plans.of(pack, layout))["skips"] == ({"beyond_model": draft} if draft else {})


@pytest.mark.parametrize(("pack", "layout"), CASES)
def test_ranks_of_one_stage_hold_equally_many_bytes(pack: str, layout: str, plans: Plans) -> None:
    plan, tp_size = plans.of(pack, layout), LAYOUTS[layout].tp_size
    held = [rank["parameter_bytes"] for rank in as_json(plan)["ranks"]]
    stages = [set(held[start : start + tp_size]) for start in range(0, len(held), tp_size)]
    assert all(len(stage) == 1 for stage in stages)


def refusal_of(plan: Plan) -> list[Finding]:
    return [f for f in plan.findings if f.level == "error"]


def test_tp_32_on_v3_is_refused(packs: dict[str, Checkpoint]) -> None:
    assert make_plan(packs["deepseek-v3"], Layout(tp_size=32)).verdict == "fail"


def test_the_refusal_of_tp_32_names_the_cut_inside_a_block(packs: dict[str, Checkpoint]) -> None:
    errors = refusal_of(make_plan(packs["deepseek-v3"], Layout(tp_size=32)))
    assert {f.code for f in errors} == {"LS207"}


def test_the_refusal_of_tp_32_names_the_largest_legal_size(packs: dict[str, Checkpoint]) -> None:
    errors = refusal_of(make_plan(packs["deepseek-v3"], Layout(tp_size=32)))
    assert all("16" in f"{f.message} {f.fix}" for f in errors)


def test_the_largest_legal_size_that_the_refusal_names_is_legal(plans: Plans) -> None:
    assert plans.of("deepseek-v3", "tp 16").verdict == "pass"


@pytest.fixture(scope="module")
def expanded(v3_pack_document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return expand_pack(v3_pack_document, tmp_path_factory.mktemp("expanded") / "deepseek-v3")


@pytest.fixture(scope="module")
def plan_of_files(expanded: Path) -> Plan:
    return make_plan(open_checkpoint(expanded), LAYOUTS["tp 8"])


def test_the_expanded_pack_has_163_real_headers(expanded: Path) -> None:
    assert len(open_checkpoint(expanded).shards) == 163


def test_the_plan_of_real_headers_passes(plan_of_files: Plan) -> None:
    assert plan_of_files.verdict == "pass"


def test_the_plan_of_real_headers_equals_the_plan_of_the_pack(
    plan_of_files: Plan, plans: Plans
) -> None:
    of_pack = plans.of("deepseek-v3", "tp 8")
    assert comparable(plan_of_files) == comparable(of_pack)


def test_the_files_say_the_same_findings_as_the_pack(plan_of_files: Plan, plans: Plans) -> None:
    of_pack = plans.of("deepseek-v3", "tp 8")
    assert [f.code for f in plan_of_files.findings] == [f.code for f in of_pack.findings]


def comparable(plan: Plan) -> dict[str, Any]:
    document = as_json(plan)
    return {key: document[key] for key in ("verdict", "layout", "totals", "ranks")}
