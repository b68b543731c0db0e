"""Experts of stacked parameters and the tensors behind them, in every format and way to store."""

from pathlib import Path
from typing import Any

import pytest
from support.deepseek_tensors import Spec, checkpoint_specs
from support.golden_checkpoint import VARIANTS, write_golden_checkpoint
from support.in_memory import in_memory

from loadscope.app.load_view import LoadView
from loadscope.app.parameter_rows import list_parameters, row, slots
from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.plan import Options, Plan, make_plan
from loadscope.loader.topology import Layout

VIEW = LoadView(1)
LAYOUTS = (Layout(), Layout(tp_size=2), Layout(tp_size=2, ep_size=2))
CASES: list[tuple[str, dict[str, Any]]] = [
    ("v3-bf16", {}),
    ("v3-bf16", {"fuse_shared_experts": True}),
    ("v3-fp8-tensor", {}),
    ("v3-awq-marlin", {"quantization": "moe_wna16"}),
    ("v3-w4afp8", {}),
    ("v3-nvfp4", {"fuse_shared_experts": True}),
    ("v3-nvfp4", {"draft": True, "nextn_moe_fp8": True}),
]


def stacked(plan: Plan, rank: int) -> dict[str, int]:
    return {
        one.name: one.elements
        for one in list_parameters(plan, (rank,))
        if plan.targets[one.target].is_stacked
    }


@pytest.mark.parametrize(("variant", "options"), CASES)
def test_the_slots_of_a_stacked_parameter_are_its_elements(
    variant: str, options: dict[str, Any], tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(write_golden_checkpoint(variant, tmp_path / variant))
    for layout in LAYOUTS:
        plan = make_plan(checkpoint, layout, Options(**options))
        for rank in range(layout.world):
            told = {name: slots(VIEW, plan, name, rank) or [] for name in stacked(plan, rank)}
            totals = {name: sum(one["total"] for one in rows) for name, rows in told.items()}
            assert totals == stacked(plan, rank)


def test_experts_that_are_stacked_in_the_files_have_slots_too() -> None:
    config = VARIANTS["v3-bf16"]
    prefix, count = "model.layers.1.mlp.experts.", config["n_routed_experts"]
    width, hidden = config["moe_intermediate_size"], config["hidden_size"]
    specs = [spec for spec in checkpoint_specs(config) if not spec.name.startswith(prefix)]
    specs += [
        Spec(prefix + "gate_up_proj", "BF16", (count, 2 * width, hidden)),
        Spec(prefix + "down_proj", "BF16", (count, hidden, width)),
    ]
    plan = make_plan(in_memory(config, specs), Layout(tp_size=2, ep_size=2))
    assert plan.verdict == "pass"
    found = slots(VIEW, plan, prefix + "w13_weight", 1)
    assert found is not None
    assert [one["expert"] for one in found] == list(range(count // 2, count))
    assert {one["total"] for one in found} == {2 * width * hidden}


def test_a_scale_that_is_made_on_the_way_has_the_weight_as_its_source(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_golden_checkpoint("v3-nvfp4", tmp_path / "model"))
    plan = make_plan(checkpoint, Layout(), Options(draft=True, nextn_moe_fp8=True))
    rows = {one.name: row(VIEW, plan, one)["sources"] for one in list_parameters(plan, (0,))}
    experts = VARIANTS["v3-nvfp4"]["n_routed_experts"]
    assert rows["model.decoder.mlp.experts.w13_weight_scale_inv"] == 2 * experts
    assert rows["model.decoder.mlp.experts.w13_weight"] == 2 * experts
