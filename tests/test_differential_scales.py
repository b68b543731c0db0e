"""Scales that are equal, absent, superfluous or spelled otherwise, against the slow model."""

from pathlib import Path

import pytest
import torch
from support.compared_load import differences, plan_load
from support.dressed import Tensors, renamed
from support.load_case import small_load
from support.loaded import fingerprints_of
from support.made_model import MadeModel
from support.quantised_formats import FORMS

from loadscope.loader.outcomes import global_skips

DYNAMIC = ("fp8 block", "fp8 tensor", "fp8 channel", "int8 channel", "int8 block",
           "compressed channel", "compressed block")  # fmt: skip
BLOCKS = ("fp8 block", "fp8 block 64x32", "compressed block", "int8 block", "w4afp8")


def equal_scales(made: MadeModel, _tensors: Tensors) -> Tensors:
    """q_a_proj and kv_a_proj_with_mqa with one scale, and every code that e4m3 has."""
    for module in [m for m in made.linears if m.endswith(".q_a_proj")]:
        other = made.linears[module.replace("q_a_proj", "kv_a_proj_with_mqa")]
        for leaf in made.linears[module]:
            if leaf in ("weight_scale", "weight_scale_2", "input_scale"):
                other[leaf] = made.linears[module][leaf].clone()
        codes = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
        other["weight"].view(-1)[:256] = codes
    return made.tensors()


def test_codes_under_equal_scales_keep_every_byte(tmp_path: Path) -> None:
    load = small_load(FORMS["fp8 tensor static"], tp=2)
    assert differences(load, tmp_path, equal_scales) == []


def with_activation_scales(made: MadeModel, tensors: Tensors) -> Tensors:
    """What some exporters add beside activations that are quantised on the fly."""
    scale = torch.tensor(0.5)
    return tensors | {f"{module}.input_scale": scale for module in made.linears}


@pytest.mark.parametrize("form", DYNAMIC)
def test_activation_scales_without_a_parameter_change_nothing(form: str, tmp_path: Path) -> None:
    load = small_load(FORMS[form], tp=2)
    assert differences(load, tmp_path, with_activation_scales) == []


@pytest.mark.parametrize("form", DYNAMIC)
def test_activation_scales_without_a_parameter_are_expected_skips(
    form: str, tmp_path: Path
) -> None:
    _made, plan = plan_load(small_load(FORMS[form], tp=2), tmp_path, with_activation_scales)
    reason, bad = "input_scale_unused", ("warning", "error")
    skipped = global_skips(plan)
    assert set(skipped) == {reason}
    assert [f.message for f in plan.findings if f.level in bad] == []


def without_activation_scales(made: MadeModel, _tensors: Tensors) -> Tensors:
    """The files have none; a parameter of 1.0 means none."""
    for leaves in made.linears.values():
        if "input_scale" in leaves:
            leaves["input_scale"] = torch.ones((), dtype=torch.bfloat16)
    return {n: t for n, t in made.tensors().items() if not n.endswith("input_scale")}


@pytest.mark.parametrize("ep", [1, 2])
def test_int4_experts_without_activation_scales_have_ones(ep: int, tmp_path: Path) -> None:
    load = small_load(FORMS["w4afp8"], tp=2, ep=ep)
    assert differences(load, tmp_path, without_activation_scales) == []


def other_suffix(name: str) -> str:
    """weight_scale for weight_scale_inv, and the other way round."""
    if name.endswith("weight_scale_inv"):
        return name.removesuffix("_inv")
    return name + "_inv" if name.endswith("weight_scale") else name


@pytest.mark.parametrize("form", BLOCKS)
def test_block_scales_with_the_other_suffix_load_alike(form: str, tmp_path: Path) -> None:
    load = small_load(FORMS[form], tp=2, ep=2)
    assert differences(load, tmp_path, lambda _made, t: renamed(t, other_suffix)) == []


UNEQUAL = ("fp8 tensor static", "compressed tensor static", "nvfp4", "w4afp8")


@pytest.mark.parametrize("form", UNEQUAL)
def test_unequal_scales_that_share_a_place_are_told(form: str, tmp_path: Path) -> None:
    _made, plan = plan_load(small_load(FORMS[form], tp=2), tmp_path)
    found = fingerprints_of(tmp_path, plan.layout, 0)["findings"]
    assert "LS603" in {finding["code"] for finding in found}


def test_equal_scales_that_share_a_place_are_not_told(tmp_path: Path) -> None:
    load = small_load(FORMS["fp8 tensor static"], tp=2, config={"first_k_dense_replace": 2})
    _made, plan = plan_load(load, tmp_path, equal_scales)
    found = fingerprints_of(tmp_path, plan.layout, 0)["findings"]
    assert "LS603" not in {finding["code"] for finding in found}
