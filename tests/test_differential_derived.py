"""w_kc, w_vc and their scales equal plain torch, for every format of kv_b_proj and platform."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.compared_load import differences, options_of, plan_load, same
from support.cutting import Place
from support.expected_derived import Sizes, kept_blocks
from support.load_case import PLATFORMS, small_load
from support.loaded import load_rank, plan_of
from support.quantised_formats import FORMS

from loadscope.loader.topology import Layout

# the same matrices under another method's name are the same to what follows
SAME = ("compressed int8", "compressed tensor", "w4afp8", "w4afp8, f32 scales")
DISTINCT = [name for name in FORMS if name not in SAME]
BLOCKS = ("fp8 block", "fp8 block ue8m0")


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("form", DISTINCT)
def test_derived_tensors_are_what_plain_torch_makes(
    form: str, platform: str, tmp_path: Path
) -> None:
    load = replace(small_load(FORMS[form], tp=2), platform=platform)
    assert differences(load, tmp_path) == []


@pytest.mark.parametrize("platform", PLATFORMS)
def test_layers_whose_kv_b_is_excluded_keep_its_floats(platform: str, tmp_path: Path) -> None:
    form = FORMS["fp8 channel"]
    entry = {**form.entry, "ignored_layers": ["layers.1.self_attn.kv_b_proj"]}
    load = small_load(form, tp=2, platform=platform, excluded=("layers.1.self_attn.kv_b_proj",))
    load.config["quantization_config"].update(entry)
    assert differences(load, tmp_path) == []


@pytest.mark.parametrize("form", BLOCKS)
def test_kept_blocks_are_the_files_codes_and_scales_per_head(form: str, tmp_path: Path) -> None:
    sizes = {"qk_nope_head_dim": 128, "v_head_dim": 256, "kv_lora_rank": 384}
    load = small_load(FORMS[form], tp=2, config={**sizes, "num_attention_heads": 4})
    made, _plan = plan_load(load, tmp_path)
    options = replace(options_of(load), deepgemm_bmm=True)
    plan = plan_of(tmp_path, Layout(tp_size=2), options)
    module = "model.layers.1.self_attn"
    storage = made.storages[f"{module}.kv_b_proj"]
    leaves = made.linears[f"{module}.kv_b_proj"]
    for rank in range(2):
        store = load_rank(plan, tmp_path, rank)
        expected = kept_blocks(storage, leaves, Place(2, rank), Sizes.of(made.config))
        wrong = [
            name
            for name, value in expected.items()
            if not same(store.derived[f"{module}.{name}"], value.value)
            or store.derived[f"{module}.{name}"].stride() != value.strides
        ]
        assert wrong == []
        assert store.flags[f"{module}.use_deep_gemm_bmm"] is True
