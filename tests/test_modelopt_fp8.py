"""modelopt's FP8 is the per-tensor fp8 of the golden records, declared in another file."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.golden_checkpoint import write_golden_checkpoint
from support.loaded import fingerprints_of

from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.plan import Options, Plan, make_plan
from loadscope.loader.topology import Layout

VARIANT = "v3-fp8-tensor"
KV_CACHE = {"kv_cache_quant_algo": "FP8"}
EXCLUDED = ["lm_head", "model.embed_tokens", "*.mlp.gate"]


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_golden_checkpoint(VARIANT, tmp_path_factory.mktemp("static") / "model")


def declared(static: Path, folder: Path, **entry: Any) -> Path:
    """The same shards; the quantisation stands in hf_quant_config.json."""
    shutil.copytree(static, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    whole = {"quant_algo": "FP8", "exclude_modules": EXCLUDED, **entry}
    document = {"producer": {"name": "modelopt"}, "quantization": whole}
    (folder / "hf_quant_config.json").write_text(json.dumps(document))
    return folder


def planned(folder: Path, **options: Any) -> Plan:
    return make_plan(open_checkpoint(folder), Layout(), Options(**options))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("options", [{}, {"draft": True}, {"fuse_shared_experts": True}])
def test_it_loads_to_the_bytes_of_the_static_per_tensor_fp8(
    static: Path, tmp_path: Path, options: dict[str, Any], rank: int
) -> None:
    layout, chosen = Layout(tp_size=2), Options(**options)
    folder = declared(static, tmp_path / "model", **KV_CACHE)
    expected = fingerprints_of(static, layout, rank, options=chosen)
    found = fingerprints_of(folder, layout, rank, options=chosen)
    for part in ("params", "derived", "scalars", "flags", "tensors"):
        assert found[part] == expected[part], part


def test_kv_scales_exist_only_with_a_quantised_cache(static: Path, tmp_path: Path) -> None:
    def scales(folder: Path) -> int:
        return sum("attn_m" in target.name for target in planned(folder).targets)

    assert scales(declared(static, tmp_path / "without")) == 0
    assert scales(declared(static, tmp_path / "with", **KV_CACHE)) == 4


def test_an_excluded_module_is_expected_unquantised(static: Path, tmp_path: Path) -> None:
    entries = [*EXCLUDED, "model.layers.1.self_attn.o_proj"]
    plan = planned(declared(static, tmp_path / "model", exclude_modules=entries))
    wrong = [f for f in plan.findings if f.code == "LS403"]
    assert [f.example for f in wrong] == ["model.layers.1.self_attn.o_proj.weight"]
    assert "exclude_modules entry 'model.layers.1.self_attn.o_proj'" in wrong[0].message


def test_another_algorithm_under_its_name_is_refused(static: Path, tmp_path: Path) -> None:
    folder = declared(static, tmp_path / "model", quant_algo="INT8_SQ")
    found = planned(folder, quantization="modelopt_fp8").findings
    assert [f.code for f in found if f.level == "error"] == ["LS205"]
    assert "INT8_SQ" in found[0].message
