"""A load whose plan passes ends with a pass, whatever the format: totals and writes agree."""

import time
from pathlib import Path
from typing import Any

import pytest
from support.golden_checkpoint import VARIANTS, write_golden_checkpoint

from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.events import Event, Recorder
from loadscope.loader.execute import run_load
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Options, make_plan
from loadscope.loader.state import fold
from loadscope.loader.topology import Layout
from loadscope.loader.views import totals

LAYOUT = Layout(tp_size=2, ep_size=2, pp_size=2)
DRAFT = {"draft": True, "nvfp4_attention_fp8": True, "nextn_moe_fp8": True}
FUSED = {"fuse_shared_experts": True}
WNA16 = {"quantization": "moe_wna16"}
# blocks that do not meet, and a file that holds one layer, a draft
REFUSED = {"v3-fp8-block-oddq", "v3-fp8-block-mtponly"}
WHOLE = sorted(VARIANTS.keys() - REFUSED)
CASES: list[tuple[str, dict[str, Any]]] = [
    *((variant, {}) for variant in WHOLE),
    *((variant, DRAFT) for variant in WHOLE if variant != "v2lite-bf16"),
    ("v3-fp8-block-mtponly", DRAFT),
    *((variant, FUSED) for variant in WHOLE if variant not in ("v2lite-bf16", "v3-w4afp8")),
    ("v3-awq", WNA16),
]


@pytest.mark.parametrize(("variant", "choice"), CASES)
def test_a_plan_that_passes_becomes_a_load_that_passes(
    variant: str, choice: dict[str, Any], tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(write_golden_checkpoint(variant, tmp_path / variant))
    layout = Layout(tp_size=2, ep_size=2) if variant in REFUSED else LAYOUT
    plan = make_plan(checkpoint, layout, Options(**choice))
    stores = {rank: ParameterStore(plan, rank) for rank in range(layout.world)}
    events: list[Event] = []
    recorder = Recorder(1, events.append, time.time)
    recorder.emit("load_started", detail={})
    run_load(plan, checkpoint, stores, recorder.emit)
    state = fold(events).as_json(time.time())
    assert (state["status"], state["verdict"]) == ("finished", "pass"), state["sentence"]
    assert state["parameters_full"] == state["parameters_total"]
    assert state["elements_written"] == state["elements_total"]
    assert state["bytes_done"] == state["bytes_total"]
    assert state["pairs_closed"] == state["pairs_total"]


def test_scales_in_the_files_are_no_initial_values(tmp_path: Path) -> None:
    """NVFP4 stores attn_mqa's cache scales, not attn_mha's: three layers, two scales each."""
    checkpoint = open_checkpoint(write_golden_checkpoint("v3-nvfp4", tmp_path / "model"))
    assert totals(make_plan(checkpoint))["parameters"]["initial"] == 3 * 2
