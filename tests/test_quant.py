"""GET /quant: which scheme a module has, which entry decided it, and whether the files agree."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import pack_path
from support.golden_checkpoint import write_golden_checkpoint
from support.serving import Serving, edit_config, serving

from loadscope.app.quant_rows import module_names, quant_rows
from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.plan import Plan, make_plan

FUSED = "model.layers.1.self_attn.fused_qkv_a_proj_with_mqa"
O_PROJ = "model.layers.2.self_attn.o_proj"


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("disk")
    write_golden_checkpoint("v3-fp8-block", folder / "good")
    return folder


@pytest.fixture(scope="module")
def server(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("state"), disk / "good", roots=(disk,)) as server:
        server.wait()
        yield server


@pytest.fixture(scope="module")
def nvfp4() -> Plan:
    return make_plan(open_checkpoint(pack_path("deepseek-r1-0528-fp4")))


def test_a_module_tells_what_decided_and_what_is_stored(server: Serving) -> None:
    told = server.get("/quant", module=FUSED)
    assert (told["module"], told["role"], told["load"], told["agree"]) == (FUSED, "target", 1, True)
    assert "no exclude entry" in told["decided_by"]
    assert [part["module"].rpartition(".")[2] for part in told["parts"]] == [
        "q_a_proj", "kv_a_proj_with_mqa",
    ]  # fmt: skip
    assert {one["dtype"] for one in told["headers"]} == {"F8_E4M3", "F32"}
    assert {one["name"] for one in told["registered"]} == {
        f"{FUSED}.weight", f"{FUSED}.weight_scale_inv",
    }  # fmt: skip


def test_an_unknown_module_gets_suggestions(server: Serving) -> None:
    answer = server.client.get("/quant", params={"module": O_PROJ.replace("o_proj", "o_prj")})
    assert answer.status_code == 404
    assert O_PROJ in answer.json()["suggestions"]


def test_kinds_are_listed_page_by_page_with_the_format(server: Serving) -> None:
    rows = server.items("/quant", limit=3)
    modules = [row["module"] for row in rows]
    assert len(modules) == len(set(modules)) > 10
    whole = server.get("/quant")
    assert whole["items"] == rows
    assert (whole["method"], whole["entries_total"]) == ("fp8", 0)
    for row in rows:
        told = server.get("/quant", module=row["example"])
        assert {key: told[key] for key in ("scheme", "decided_by", "agree")} == {
            key: row[key] for key in ("scheme", "decided_by", "agree")
        }


def test_layers_that_are_alike_share_a_row(nvfp4: Plan) -> None:
    rows = {row["module"]: row for row in quant_rows(nvfp4)}
    experts = rows["model.layers.{layer}.mlp.experts"]
    assert (experts["layers"], experts["count"]) == ("3-60", 58)
    attention = rows["model.layers.{layer}.self_attn.o_proj"]
    assert attention["layers"] == "0-60"
    assert "exclude_modules entry" in attention["decided_by"]
    assert experts["scheme"] != attention["scheme"]


def test_every_row_counts_its_modules(nvfp4: Plan) -> None:
    assert sum(row["count"] for row in quant_rows(nvfp4)) == len(module_names(nvfp4))


def test_a_module_that_disagrees_has_a_row_of_its_own(disk: Path, tmp_path: Path) -> None:
    folder = write_golden_checkpoint("v3-fp8-block", tmp_path / "excluded")
    config = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    wrong = {**config, "modules_to_not_convert": [O_PROJ]}
    edit_config(folder, quantization_config=wrong)
    rows: list[dict[str, Any]] = quant_rows(make_plan(open_checkpoint(folder)))
    kind = [row for row in rows if row["module"].endswith("self_attn.o_proj")]
    assert [(row["layers"], row["agree"]) for row in kind] == [("0-1", True), ("2", False)]
    assert O_PROJ in kind[1]["decided_by"]
    assert kind[1]["disagreements"][0].startswith(f"{O_PROJ}.weight is stored as F8_E4M3")
