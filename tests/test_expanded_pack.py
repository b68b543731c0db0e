"""A recorded header pack and real files with the same headers give the same plan."""

from pathlib import Path
from typing import Any

import pytest
from conftest import open_pack
from support.safetensors_files import expand_pack

from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.plan import Plan, make_plan
from loadscope.loader.topology import Layout
from loadscope.loader.views import as_json


@pytest.fixture(scope="module")
def expanded(v3_pack_document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return expand_pack(v3_pack_document, tmp_path_factory.mktemp("expanded") / "deepseek-v3")


@pytest.fixture(scope="module")
def plan_of_files(expanded: Path) -> Plan:
    return make_plan(open_checkpoint(expanded), Layout(tp_size=8))


@pytest.fixture(scope="module")
def plan_of_pack() -> Plan:
    return make_plan(open_pack("deepseek-v3"), Layout(tp_size=8))


def test_the_expanded_pack_has_163_real_headers(expanded: Path) -> None:
    assert len(open_checkpoint(expanded).shards) == 163


def test_the_plan_of_real_headers_passes(plan_of_files: Plan) -> None:
    assert plan_of_files.verdict == "pass"


def test_the_plan_of_real_headers_equals_the_plan_of_the_pack(
    plan_of_files: Plan, plan_of_pack: Plan
) -> None:
    assert comparable(plan_of_files) == comparable(plan_of_pack)


def test_the_files_say_the_same_findings_as_the_pack(
    plan_of_files: Plan, plan_of_pack: Plan
) -> None:
    codes = [[f.code for f in plan.findings] for plan in (plan_of_files, plan_of_pack)]
    assert codes[0] == codes[1]


def comparable(plan: Plan) -> dict[str, Any]:
    document = as_json(plan)
    return {key: document[key] for key in ("verdict", "layout", "totals", "ranks")}
