"""One checkpoint under other spellings and headers: the same bits, and a note."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.golden_checkpoint import write_golden_checkpoint
from support.loaded import fingerprints_of, plan_of

from loadscope.loader.topology import Layout

Rename = Callable[[str], str]


def inner(name: str) -> str:
    """Names of a language model inside a larger one; its head stays outside."""
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name


RENAMES: dict[str, Rename] = {
    "language_model.": lambda name: f"language_model.{name}",
    "model.language_model.": inner,
    ".base_layer.": lambda name: name.replace("_proj.weight", "_proj.base_layer.weight"),
    "weight_scale": lambda name: name.replace("weight_scale_inv", "weight_scale"),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spellings") / "original"
    write_golden_checkpoint("v32-fp8-block", folder)
    return folder


@pytest.fixture(scope="module")
def facts(original: Path) -> dict[str, Any]:
    return fingerprints_of(original, Layout(), 0)


def rewritten(
    original: Path, folder: Path, rename: Rename = str, padding: int = 0, order: int = 1
) -> Path:
    """The same data under other names, behind a header of another length or order."""
    shutil.copytree(original, folder)
    weight_map = {}
    for file in sorted(folder.glob("*.safetensors")):
        content = file.read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        entries = list(json.loads(content[8 : 8 + length]).items())[::order]
        header = {rename(name): entry for name, entry in entries}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8 + padding)
        file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
        weight_map.update(dict.fromkeys(header, file.name))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("spelling", RENAMES)
def test_another_spelling_is_accepted_with_a_note(
    spelling: str, original: Path, facts: dict[str, Any], tmp_path: Path
) -> None:
    folder = rewritten(original, tmp_path / "renamed", RENAMES[spelling])
    plan = plan_of(folder, Layout())
    assert [f.message for f in plan.findings if f.level != "note"] == []
    assert any(f.code == "LS303" for f in plan.findings)
    found = fingerprints_of(folder, Layout(), 0)
    assert found["params"] == facts["params"]
    assert found["derived"] == facts["derived"]
    assert set(found["tensors"]) == {RENAMES[spelling](name) for name in facts["tensors"]}


@pytest.mark.parametrize("change", [{"padding": 3}, {"order": -1}])
def test_an_odd_header_length_or_order_changes_nothing(
    change: dict[str, int], original: Path, facts: dict[str, Any], tmp_path: Path
) -> None:
    folder = rewritten(original, tmp_path / "changed", **change)
    found = fingerprints_of(folder, Layout(), 0)
    assert found["params"] == facts["params"]
