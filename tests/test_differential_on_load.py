"""Plain matrices of NVFP4 checkpoints that are quantised on their way: plain torch, bit for bit."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.compared_load import differences, options_of, rank_differences
from support.expected_rank import Asked
from support.load_case import Load, small_load
from support.loaded import load_rank, plan_of
from support.made_model import MadeModel
from support.quantised_formats import FORMS
from support.stored import E4M3, Leaves, Storage
from support.tensor_files import write_tensors
from torch import Tensor

from loadscope.loader.topology import Layout

BLOCK = Storage("block")
SIZES = {
    "hidden_size": 192,
    "q_lora_rank": 160,
    "qk_nope_head_dim": 48,
    "qk_rope_head_dim": 16,
    "num_attention_heads": 8,
    "moe_intermediate_size": 256,
    "n_routed_experts": 4,
    "num_nextn_predict_layers": 1,
}


def quantised(matrix: Tensor) -> Leaves:
    """Blocks of 128: the scale is the next power of two above greatest / 448."""
    rows, columns = matrix.shape
    codes = torch.empty(rows, columns, dtype=E4M3)
    scales = torch.empty(-(-rows // 128), -(-columns // 128))
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            place = (slice(i * 128, (i + 1) * 128), slice(j * 128, (j + 1) * 128))
            block = matrix[place].float()
            least = block.abs().max().clamp(min=1e-4) / 448
            exponent = torch.ceil(torch.log2(least.double()))
            scales[i, j] = 2.0**exponent
            codes[place] = (block / scales[i, j]).to(E4M3)
    return {"weight": codes, "weight_scale_inv": scales}


def quantise(made: MadeModel, modules: list[str]) -> MadeModel:
    """What the files would hold if these modules were stored as fp8 blocks."""
    linears, storages = dict(made.linears), dict(made.storages)
    for module in modules:
        assert storages[module].kind == "plain"
        linears[module] = quantised(made.linears[module]["weight"])
        storages[module] = BLOCK
    return replace(made, linears=linears, storages=storages)


def check(load: Load, folder: Path, modules: tuple[str, ...], **options: bool) -> None:
    made = load.model()
    write_tensors(folder, made.config, made.tensors())
    layout = Layout(tp_size=load.asked.tp, ep_size=load.asked.ep)
    plan = plan_of(folder, layout, replace(options_of(load), **options))
    assert plan.verdict == "pass", [f.message for f in plan.findings if f.level == "error"]
    named = [m for m in made.linears if m.endswith(modules) and is_planned(load, m)]
    assert named
    expected = quantise(made, named)
    wrong = [
        text
        for rank in range(layout.world)
        for text in rank_differences(load, expected, load_rank(plan, folder, rank))
    ]
    assert wrong == []


def is_planned(load: Load, module: str) -> bool:
    is_draft = module.startswith(f"model.layers.{load.config['num_hidden_layers']}.")
    return is_draft == load.asked.is_draft


def nvfp4_load(layout: tuple[int, int], *, is_draft: bool, fuses_shared: bool = False) -> Load:
    tp, ep = layout
    load = small_load(FORMS["nvfp4"], tp=tp, ep=ep, config=SIZES, excluded=("self_attn",), seed=3)
    load.config["quantization_config"]["exclude_modules"] = ["*self_attn*"]
    asked = Asked(tp, ep, is_draft=is_draft, fuses_shared=fuses_shared)
    return replace(load, asked=asked)


LAYOUTS = [(1, 1), (2, 1), (2, 2), (4, 2)]
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_draft", [False, True])
def test_query_matrices_are_quantised_whole_and_then_cut(
    layout: tuple[int, int], is_draft: bool, tmp_path: Path
) -> None:
    load = nvfp4_load(layout, is_draft=is_draft)
    check(load, tmp_path, ("q_b_proj",), nvfp4_attention_fp8=True)


@pytest.mark.parametrize("layout", [(1, 1), (2, 2)])
@pytest.mark.parametrize("fuses_shared", [False, True])
def test_the_experts_of_a_draft_are_quantised_whole_and_then_cut(
    layout: tuple[int, int], fuses_shared: bool, tmp_path: Path
) -> None:
    load = nvfp4_load(layout, is_draft=True, fuses_shared=fuses_shared)
    check(load, tmp_path, PROJECTIONS, nextn_moe_fp8=True)


@pytest.mark.parametrize("is_draft", [False, True])
def test_without_the_options_floats_stay_floats(is_draft: bool, tmp_path: Path) -> None:
    assert differences(nvfp4_load((2, 1), is_draft=is_draft), tmp_path) == []
