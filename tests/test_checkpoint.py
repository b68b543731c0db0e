"""Opening checkpoints: every fault of a file is a finding with its name, never a traceback."""

import gc
import gzip
import json
import math
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from loadscope.loader.checkpoint import (
    DTYPE_BITS,
    Checkpoint,
    NotACheckpoint,
    Tensor,
    open_checkpoint,
    pattern_of,
)

INDEX = "model.safetensors.index.json"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
CONFIG = {"model_type": "deepseek_v3"}
HELD = {
    ONE: {"model.a": ("F32", [2, 3]), "model.b": ("BF16", [4])},
    TWO: {"model.c": ("F8_E4M3", [8]), "model.d": ("F32", [])},
}
Fault = Callable[[Path], object]


def header_of(tensors: dict[str, tuple[str, list[int]]]) -> dict[str, Any]:
    """The entries of a well-made header, data in the order given."""
    entries: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + math.prod(shape) * DTYPE_BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    return entries


def shard_bytes(header: bytes | dict[str, Any], data_bytes: int | None = None) -> bytes:
    if isinstance(header, dict):
        if data_bytes is None:
            data_bytes = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        header = json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + bytes(data_bytes or 0)


def write_index(directory: Path, index: object) -> None:
    (directory / INDEX).write_text(json.dumps(index))


def weight_map() -> dict[str, Any]:
    return {name: shard for shard, tensors in HELD.items() for name in tensors}


def write_checkpoint(directory: Path) -> Path:
    """Two sound shards, their index and a config."""
    directory.mkdir(parents=True, exist_ok=True)
    for shard, tensors in HELD.items():
        (directory / shard).write_bytes(shard_bytes(header_of(tensors)))
    write_index(directory, {"metadata": {"total_size": 44}, "weight_map": weight_map()})
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return directory


def codes(checkpoint: Checkpoint) -> list[str]:
    return [found.code for found in checkpoint.findings]


def rewrite(shard: str, header: bytes | dict[str, Any], data_bytes: int | None = None) -> Fault:
    return lambda at: (at / shard).write_bytes(shard_bytes(header, data_bytes))


def move(shard: str, name: str, offsets: list[int]) -> Fault:
    """One tensor at other offsets, in a file that ends there."""
    header = header_of(HELD[shard])
    header[name]["data_offsets"] = offsets
    return rewrite(shard, header, offsets[1])


def change(shard: str, name: str, **fields: object) -> Fault:
    """One field of one entry changed, the file's size kept."""

    def apply(at: Path) -> None:
        header = header_of(HELD[shard])
        size = max(entry["data_offsets"][1] for entry in header.values())
        header[name] |= fields
        (at / shard).write_bytes(shard_bytes(json.dumps(header).encode(), size))

    return apply


def replace_entry(shard: str, name: str, entry: object) -> Fault:
    header = {**header_of(HELD[shard]), name: entry}
    return rewrite(shard, json.dumps(header).encode(), 32)


def remap(**owners: object) -> Fault:
    """Entries of the index changed; None removes one."""

    def apply(at: Path) -> None:
        changed = weight_map() | {f"model.{name}": owner for name, owner in owners.items()}
        kept = {name: owner for name, owner in changed.items() if owner != "removed"}
        write_index(at, {"weight_map": kept})

    return apply


def text(name: str, content: str | bytes) -> Fault:
    raw = content if isinstance(content, bytes) else content.encode()
    return lambda at: (at / name).write_bytes(raw)


def cut(shard: str, by: int) -> Fault:
    return lambda at: os.truncate(at / shard, (at / shard).stat().st_size - by)


def dangle(name: str) -> Fault:
    def apply(at: Path) -> None:
        (at / name).unlink()
        (at / name).symlink_to("gone")

    return apply


def as_directory(name: str) -> Fault:
    def apply(at: Path) -> None:
        (at / name).unlink()
        (at / name).mkdir()

    return apply


def as_pipe(name: str) -> Fault:
    def apply(at: Path) -> None:
        (at / name).unlink()
        os.mkfifo(at / name)

    return apply


def insert(shard: str, before: bytes, added: bytes) -> Fault:
    """More text in a sound header."""
    raw = json.dumps(header_of(HELD[shard])).encode().replace(before, added + before, 1)
    return rewrite(shard, raw, 32)


A_ENTRY = b'{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}'
B_OFFSETS = {"dtype": "BF16", "shape": [4]}
DEEP = "[" * 100_000
FAULTS: dict[str, tuple[Fault, str, str, str]] = {
    # case: (how to make it, code, level, file in the subject)
    "index names an absent shard": (lambda at: (at / TWO).unlink(), "LS101", "error", TWO),
    "index entry not in that shard": (remap(z=ONE), "LS102", "error", ONE),
    "index entry in another shard": (remap(a=TWO), "LS102", "error", TWO),
    "truncated shard": (cut(ONE, 1), "LS103", "error", ONE),
    "shard without any data": (cut(ONE, 32), "LS103", "error", ONE),
    "bytes past the end": (rewrite(ONE, header_of(HELD[ONE]), 33), "LS104", "error", ONE),
    "offsets overlap": (move(ONE, "model.b", [16, 24]), "LS105", "error", ONE),
    "offsets leave a hole": (move(ONE, "model.b", [25, 33]), "LS105", "error", ONE),
    "offsets out of range": (
        change(ONE, "model.b", data_offsets=[1 << 40, (1 << 40) + 8]),
        "LS105",
        "error",
        ONE,
    ),
    "offsets beyond 64 bits": (
        change(ONE, "model.b", data_offsets=[10**30, 10**30 + 8]),
        "LS105",
        "error",
        ONE,
    ),
    "offsets reversed": (change(ONE, "model.b", data_offsets=[32, 24]), "LS105", "error", ONE),
    "offsets negative": (change(ONE, "model.a", data_offsets=[-24, 0]), "LS105", "error", ONE),
    "offsets are floats": (
        change(ONE, "model.b", data_offsets=[24.0, 32.0]),
        "LS105",
        "error",
        ONE,
    ),
    "offsets are booleans": (
        change(ONE, "model.b", data_offsets=[True, 32]),
        "LS105",
        "error",
        ONE,
    ),
    "offsets are three": (change(ONE, "model.b", data_offsets=[24, 28, 32]), "LS105", "error", ONE),
    "offsets are a string": (change(ONE, "model.b", data_offsets="ab"), "LS105", "error", ONE),
    "offsets are null": (change(ONE, "model.b", data_offsets=None), "LS105", "error", ONE),
    "shape is not the byte count": (change(ONE, "model.b", shape=[5]), "LS106", "error", ONE),
    "dtype is not the byte count": (change(ONE, "model.b", dtype="F32"), "LS106", "error", ONE),
    "half bytes": (change(ONE, "model.b", dtype="F4", shape=[15]), "LS106", "error", ONE),
    "huge product": (change(ONE, "model.b", shape=[1 << 62] * 60), "LS106", "error", ONE),
    "unknown dtype": (change(ONE, "model.b", dtype="F12"), "LS107", "error", ONE),
    "dtype is a list": (change(ONE, "model.b", dtype=["BF16"]), "LS107", "error", ONE),
    "shape is negative": (change(ONE, "model.b", shape=[-4]), "LS122", "error", ONE),
    "shape is beyond 64 bits": (change(ONE, "model.b", shape=[10**30]), "LS122", "error", ONE),
    "shape has a boolean": (change(ONE, "model.b", shape=[True, 4]), "LS122", "error", ONE),
    "shape has a float": (change(ONE, "model.b", shape=[4.0]), "LS122", "error", ONE),
    "shape is nested": (change(ONE, "model.b", shape=[[4]]), "LS122", "error", ONE),
    "shape is a string": (change(ONE, "model.b", shape="4"), "LS122", "error", ONE),
    "shape is an object": (change(ONE, "model.b", shape={}), "LS122", "error", ONE),
    "shape has 1,000 dims": (change(ONE, "model.b", shape=[1] * 1000), "LS122", "error", ONE),
    "entry is a list": (replace_entry(ONE, "model.b", []), "LS122", "error", ONE),
    "entry is a string": (replace_entry(ONE, "model.b", "x"), "LS122", "error", ONE),
    "entry is null": (replace_entry(ONE, "model.b", None), "LS122", "error", ONE),
    "entry without offsets": (replace_entry(ONE, "model.b", B_OFFSETS), "LS122", "error", ONE),
    "metadata is a list": (replace_entry(ONE, "__metadata__", []), "LS108", "error", ONE),
    "metadata has a number": (replace_entry(ONE, "__metadata__", {"a": 1}), "LS108", "error", ONE),
    "header is not JSON": (rewrite(ONE, b"{model", 32), "LS108", "error", ONE),
    "header is not UTF-8": (rewrite(ONE, b'{"\xff":1}', 32), "LS108", "error", ONE),
    "header is UTF-16": (rewrite(ONE, "{}".encode("utf-16"), 0), "LS108", "error", ONE),
    "header is a list": (rewrite(ONE, b"[]", 0), "LS108", "error", ONE),
    "header is empty": (rewrite(ONE, b"", 32), "LS108", "error", ONE),
    "header nested deeply": (rewrite(ONE, DEEP.encode(), 0), "LS108", "error", ONE),
    "header entry nested deeply": (
        rewrite(ONE, b'{"a":' + b'{"b":' * 90_000, 0),
        "LS108",
        "error",
        ONE,
    ),
    "header has NaN": (rewrite(ONE, b'{"a":NaN}', 0), "LS108", "error", ONE),
    "header has a giant number": (
        rewrite(ONE, b'{"a":' + b"9" * 5000 + b"}", 0),
        "LS108",
        "error",
        ONE,
    ),
    "header has half a surrogate": (rewrite(ONE, rb'{"\ud800":{}}', 0), "LS108", "error", ONE),
    "header length 2^63": (text(ONE, struct.pack("<Q", 1 << 63) + b"{}"), "LS109", "error", ONE),
    "header length one too many": (text(ONE, struct.pack("<Q", 3) + b"{}"), "LS109", "error", ONE),
    "seven bytes": (text(ONE, b"1234567"), "LS109", "error", ONE),
    "duplicate tensor": (
        insert(ONE, b'"model.a"', b'"model.a":' + A_ENTRY + b","),
        "LS110",
        "error",
        ONE,
    ),
    "duplicate field": (insert(ONE, b'"dtype"', b'"dtype":"F32",'), "LS110", "error", ONE),
    "duplicate behind an escape": (
        insert(ONE, b'"model.a"', rb'"model.\u0061":' + A_ENTRY + b","),
        "LS110",
        "error",
        ONE,
    ),
    "duplicate beside a faulty entry": (
        insert(ONE, b'"model.a"', b'"model.a":{},'),
        "LS110",
        "error",
        ONE,
    ),
    "duplicate in the index": (
        text(INDEX, json.dumps({"weight_map": weight_map()})[:-2] + f',"model.a":"{ONE}"}}}}'),
        "LS110",
        "error",
        INDEX,
    ),
    "duplicate in the config": (
        text("config.json", '{"model_type":"a","model_type":"b"}'),
        "LS110",
        "error",
        "config.json",
    ),
    "index value climbs": (remap(a="../" + ONE), "LS111", "error", INDEX),
    "index value is absolute": (remap(a="/etc/passwd"), "LS111", "error", INDEX),
    "index value has a folder": (remap(a="x/" + ONE), "LS111", "error", INDEX),
    "index value has a backslash": (remap(a="a\\b"), "LS111", "error", INDEX),
    "index value has a drive": (remap(a="C:" + ONE), "LS111", "error", INDEX),
    "index value is empty": (remap(a=""), "LS111", "error", INDEX),
    "index value is dots": (remap(a=".."), "LS111", "error", INDEX),
    "index value has NUL": (remap(a="a\0b"), "LS111", "error", INDEX),
    "index value is a number": (remap(a=7), "LS111", "error", INDEX),
    "index value is a list": (remap(a=[ONE]), "LS111", "error", INDEX),
    "index value is very long": (remap(a="x" * 5000), "LS101", "error", "x" * 200 + "…"),
    "index value is no shard": (remap(a="config.json"), "LS109", "error", "config.json"),
    "dangling shard": (dangle(ONE), "LS112", "error", ONE),
    "dangling index": (dangle(INDEX), "LS112", "error", INDEX),
    "dangling config": (dangle("config.json"), "LS112", "error", "config.json"),
    "zero-byte shard": (text(ONE, b""), "LS113", "error", ONE),
    "zero-byte index": (text(INDEX, b""), "LS113", "error", INDEX),
    "zero-byte config": (text("config.json", b""), "LS113", "error", "config.json"),
    "one name in two shards": (
        rewrite(TWO, header_of({**HELD[TWO], "model.a": ("F32", [2, 3])})),
        "LS115",
        "warning",
        TWO,
    ),
    "tensor in no index entry": (remap(a="removed"), "LS116", "warning", ONE),
    "file in no index entry": (
        rewrite("consolidated.safetensors", header_of({"wq": ("BF16", [4])})),
        "LS116",
        "warning",
        "consolidated.safetensors",
    ),
    "broken file in no index entry": (
        text("extra.safetensors", b"x"),
        "LS116",
        "warning",
        "extra.safetensors",
    ),
    "total_size differs": (
        lambda at: write_index(at, {"metadata": {"total_size": 1}, "weight_map": weight_map()}),
        "LS117",
        "note",
        INDEX,
    ),
    "no config": (lambda at: (at / "config.json").unlink(), "LS118", "error", "model"),
    "index is not JSON": (text(INDEX, "{"), "LS120", "error", INDEX),
    "index is a list": (text(INDEX, "[]"), "LS120", "error", INDEX),
    "index without weight_map": (text(INDEX, "{}"), "LS120", "error", INDEX),
    "index nested deeply": (text(INDEX, DEEP), "LS120", "error", INDEX),
    "weight_map is a list": (text(INDEX, '{"weight_map":[]}'), "LS120", "error", INDEX),
    "shard is a directory": (as_directory(ONE), "LS121", "error", ONE),
    "shard is a pipe": (as_pipe(ONE), "LS121", "error", ONE),
    "config is a directory": (as_directory("config.json"), "LS121", "error", "config.json"),
    "config is not JSON": (text("config.json", "{"), "LS201", "error", "config.json"),
    "config is a list": (text("config.json", "[]"), "LS201", "error", "config.json"),
    "config nested deeply": (text("config.json", DEEP), "LS201", "error", "config.json"),
    "quantisation is not JSON": (
        text("hf_quant_config.json", "{"),
        "LS201",
        "error",
        "hf_quant_config.json",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_a_finding_with_the_files_name(case: str, tmp_path: Path) -> None:
    make, code, level, file = FAULTS[case]
    directory = write_checkpoint(tmp_path / "model")
    make(directory)
    checkpoint = open_checkpoint(directory)
    found = [f for f in checkpoint.findings if (f.code, f.level, f.subject) == (code, level, file)]
    assert len(found) == 1, checkpoint.findings
    assert file in found[0].message
    assert "found" in found[0].message
    assert found[0].fix
    # one cause, one error; and what is said can be sent and names no path of this machine
    assert sum(f.level == "error" for f in checkpoint.findings) == (level == "error")
    said = json.dumps([f.as_json() for f in checkpoint.findings]).encode()
    assert str(tmp_path).encode() not in said
    assert len(said) < 10_000


def test_a_sound_checkpoint_has_no_findings_and_absolute_offsets(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_checkpoint(tmp_path / "model"))
    assert checkpoint.findings == ()
    assert (checkpoint.kind, checkpoint.label, checkpoint.config) == ("directory", "model", CONFIG)
    assert [shard.name for shard in checkpoint.shards] == [ONE, TWO]
    start = checkpoint.shards[0].data_start
    assert checkpoint.tensors["model.b"] == Tensor("BF16", (4,), 0, start + 24, start + 32)
    assert checkpoint.tensors["model.d"].shape == ()
    assert checkpoint.shards[0].size == start + 32
    assert checkpoint.total_bytes == 44


def test_data_order_need_not_be_header_order(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model")
    header = dict(reversed(header_of(HELD[ONE]).items()))
    (directory / ONE).write_bytes(shard_bytes(header))
    assert open_checkpoint(directory).findings == ()


def test_zero_sized_tensors_and_padding_are_legal(tmp_path: Path) -> None:
    header = header_of({"a": ("F32", [2]), "none": ("F32", [0, 7]), "b": ("F4", [4])})
    raw = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode() + b"    "
    (tmp_path / "model.safetensors").write_bytes(shard_bytes(raw, 10))
    (tmp_path / "config.json").write_text("{}")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.findings == ()
    assert checkpoint.tensors["none"].shape == (0, 7)


def test_a_header_without_tensors_is_legal(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(shard_bytes(b"{}"))
    (tmp_path / "config.json").write_text("{}")
    assert open_checkpoint(tmp_path).findings == ()


def test_a_tensor_named_like_a_field_is_no_duplicate(tmp_path: Path) -> None:
    header = header_of({"dtype": ("U8", [2]), "shape": ("U8", [2]), 'quo"te': ("U8", [1])})
    (tmp_path / "model.safetensors").write_bytes(shard_bytes(header))
    (tmp_path / "config.json").write_text("{}")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.findings == ()
    assert len(checkpoint.tensors) == 3


def test_one_file_takes_the_config_beside_it(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model")
    checkpoint = open_checkpoint(directory / ONE)
    assert (checkpoint.kind, checkpoint.label, checkpoint.config) == ("file", ONE, CONFIG)
    assert set(checkpoint.tensors) == set(HELD[ONE])
    assert checkpoint.directory == directory


def test_links_to_blobs_are_followed(tmp_path: Path) -> None:
    directory, blobs = write_checkpoint(tmp_path / "model"), tmp_path / "blobs"
    blobs.mkdir()
    for number, file in enumerate(sorted(directory.iterdir())):
        file.rename(blobs / str(number))
        file.symlink_to(blobs / str(number))
    checkpoint = open_checkpoint(directory)
    assert checkpoint.findings == ()
    assert [shard.name for shard in checkpoint.shards] == [ONE, TWO]


def test_without_an_index_all_shards_count(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model")
    (directory / INDEX).unlink()
    checkpoint = open_checkpoint(directory)
    assert checkpoint.findings == ()
    assert len(checkpoint.tensors) == 4


def test_without_an_index_a_name_in_two_shards_is_an_error_and_the_first_is_kept(
    tmp_path: Path,
) -> None:
    directory = write_checkpoint(tmp_path / "model")
    (directory / INDEX).unlink()
    (directory / TWO).write_bytes(shard_bytes(header_of({"model.a": ("F32", [9])})))
    checkpoint = open_checkpoint(directory)
    assert codes(checkpoint) == ["LS114"]
    assert checkpoint.findings[0].subject == TWO
    assert checkpoint.tensors["model.a"].shape == (2, 3)


def test_without_an_index_a_consolidated_copy_is_not_used(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model")
    (directory / INDEX).unlink()
    copy = directory / "consolidated.safetensors"
    copy.write_bytes(shard_bytes(header_of(HELD[ONE])))
    checkpoint = open_checkpoint(directory)
    assert [(f.code, f.level) for f in checkpoint.findings] == [("LS116", "warning")]
    assert len(checkpoint.tensors) == 4


def test_the_index_decides_between_two_shards(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model")
    FAULTS["one name in two shards"][0](directory)
    assert open_checkpoint(directory).tensors["model.a"].file == 0


def test_a_tensor_in_no_index_entry_is_not_used(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model")
    remap(a="removed")(directory)
    checkpoint = open_checkpoint(directory)
    assert "model.a" not in checkpoint.tensors
    assert checkpoint.findings[0].evidence["examples"] == ["model.a"]


def test_an_unusable_index_leaves_the_shards_readable(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model")
    (directory / INDEX).write_text("no")
    assert len(open_checkpoint(directory).tensors) == 4


def test_an_index_under_another_name_is_found(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model")
    remap(a="removed")(directory)
    (directory / INDEX).rename(directory / "other.safetensors.index.json")
    assert codes(open_checkpoint(directory)) == ["LS116"]


def test_two_indices_are_an_error(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model")
    for name in "ab":
        (directory / f"{name}.safetensors.index.json").write_bytes((directory / INDEX).read_bytes())
    assert codes(open_checkpoint(directory)) == []
    (directory / INDEX).unlink()
    assert codes(open_checkpoint(directory)) == ["LS120"]


def test_thousands_of_faults_are_one_finding(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model")
    bad = {f"model.layers.{n}.experts.{n}.w": {"dtype": "X"} for n in range(5000)}
    (directory / ONE).write_bytes(shard_bytes(json.dumps(bad).encode(), 8))
    (directory / INDEX).unlink()
    (found,) = open_checkpoint(directory).findings
    assert (found.code, found.count) == ("LS122", 5000)
    assert found.pattern == "model.layers.{layer}.experts.{expert}.w"
    assert found.evidence["examples"] == [f"model.layers.{n}.experts.{n}.w" for n in range(5)]


def test_many_absent_shards_are_one_finding(tmp_path: Path) -> None:
    owners = {f"t{n}": f"model-{n:05}.safetensors" for n in range(1000)}
    write_index(tmp_path, {"weight_map": owners})
    (tmp_path / "config.json").write_text("{}")
    (found,) = open_checkpoint(tmp_path).findings
    assert (found.code, found.count, found.subject) == ("LS101", 1000, "1,000 files")
    assert "model-00000.safetensors" in found.message


def test_a_config_without_shards_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    (found,) = open_checkpoint(tmp_path).findings
    assert (found.code, found.level, found.subject) == ("LS119", "error", "config.json")
    assert "convert" in found.message


def test_hf_quant_config_travels_with_the_config(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model")
    (directory / "hf_quant_config.json").write_text('{"producer":1}')
    assert open_checkpoint(directory).config == {**CONFIG, "_hf_quant_config": {"producer": 1}}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("absent", None, "no such file"),
        ("absent.safetensors", None, "no such file"),
        ("nul\0", None, "no such file"),
        ("x" * 300, None, "no such file"),
        ("model.txt", b"hello", "another kind"),
        (INDEX, b"{}", "another kind"),
        ("model.bin", b"PK", "convert"),
        ("pytorch_model.pt", b"PK", "convert"),
    ],
)
def test_a_path_that_is_no_checkpoint_is_refused(
    name: str, content: bytes | None, says: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(NotACheckpoint, match=says) as refusal:
        open_checkpoint(tmp_path / name)
    assert str(tmp_path) not in str(refusal.value)


@pytest.mark.parametrize(("files", "says"), [([], "expected a checkpoint"), (["a.bin"], "convert")])
def test_a_directory_that_is_no_checkpoint_is_refused(
    files: list[str], says: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(NotACheckpoint, match=says):
        open_checkpoint(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_a_finding(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model")
    (directory / ONE).chmod(0)
    assert codes(open_checkpoint(directory)) == ["LS121"]


def test_a_file_name_that_is_not_utf8_is_a_finding(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model")
    (directory / INDEX).unlink()
    os.rename(directory / TWO, os.fsencode(directory) + b"/\xff.safetensors")
    (found,) = open_checkpoint(directory).findings
    assert found.code == "LS121"
    assert json.dumps(found.as_json(), ensure_ascii=False).encode()


def test_garbage_collection_is_left_as_it_was(tmp_path: Path) -> None:
    open_checkpoint(write_checkpoint(tmp_path / "model"))
    assert gc.isenabled()
    with pytest.raises(NotACheckpoint):
        open_checkpoint(tmp_path / "absent")
    assert gc.isenabled()


def pack_of(**fields: object) -> dict[str, Any]:
    files = {shard: header_of(tensors) for shard, tensors in HELD.items()}
    return {"checkpoint": "tiny", "config": CONFIG, "files": files, **fields}


def write_pack(directory: Path, content: object) -> Path:
    path = directory / "tiny.headers.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def test_a_pack_is_a_checkpoint_without_data(tmp_path: Path) -> None:
    quantisation = {"producer": 1}
    checkpoint = open_checkpoint(write_pack(tmp_path, pack_of(hf_quant_config=quantisation)))
    assert (checkpoint.kind, checkpoint.label, checkpoint.findings) == ("pack", "tiny", ())
    assert checkpoint.config == {**CONFIG, "_hf_quant_config": quantisation}
    assert [(shard.size, shard.data_start) for shard in checkpoint.shards] == [(32, 0), (12, 0)]
    assert checkpoint.tensors["model.b"] == Tensor("BF16", (4,), 0, 24, 32)


def test_a_pack_may_leave_offsets_out_and_be_uncompressed(tmp_path: Path) -> None:
    pack = pack_of()
    for entry in (entry for header in pack["files"].values() for entry in header.values()):
        del entry["data_offsets"]
    (tmp_path / "tiny.headers.json").write_text(json.dumps(pack))
    whole = open_checkpoint(write_pack(tmp_path, pack_of()))
    bare = open_checkpoint(tmp_path / "tiny.headers.json")
    assert (bare.tensors, bare.shards, bare.findings) == (whole.tensors, whole.shards, ())


BAD_PACKS: dict[str, tuple[object, str]] = {
    "a list": ([], "LS108"),
    "empty": ({}, "LS108"),
    "files is a list": (pack_of(files=[]), "LS108"),
    "header is a list": (pack_of(files={ONE: []}), "LS108"),
    "entry is a list": (pack_of(files={ONE: {"a": []}}), "LS122"),
    "entry with nothing": (pack_of(files={ONE: {"a": {}}}), "LS122"),
    "unknown dtype": (pack_of(files={ONE: {"a": {"dtype": "X", "shape": []}}}), "LS107"),
    "file name climbs": (pack_of(files={"../x": {}}), "LS111"),
    "name in two files": (pack_of(files={n: header_of(HELD[ONE]) for n in (ONE, TWO)}), "LS114"),
    "no config": (pack_of(config=None), "LS118"),
    "total_size differs": (pack_of(index_metadata={"total_size": 1}), "LS117"),
}


@pytest.mark.parametrize("case", BAD_PACKS)
def test_a_bad_pack_is_a_finding(case: str, tmp_path: Path) -> None:
    content, code = BAD_PACKS[case]
    assert code in codes(open_checkpoint(write_pack(tmp_path, content)))


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "LS113"),
        (b"{}", "LS108"),
        (gzip.compress(b"{}" * 1000)[:-9], "LS108"),
        (gzip.compress(b"{}")[:12] + b"\xff\xff\xff" + gzip.compress(b"{}")[15:], "LS108"),
        (gzip.compress(b"not json"), "LS108"),
        (gzip.compress(b'{"files":{},"files":{},"config":{}}'), "LS110"),
    ],
    ids=["empty", "not gzip", "cut", "broken", "not JSON", "duplicate"],
)
def test_a_pack_that_cannot_be_expanded_is_a_finding(raw: bytes, code: str, tmp_path: Path) -> None:
    (tmp_path / "x.headers.json.gz").write_bytes(raw)
    assert code in codes(open_checkpoint(tmp_path / "x.headers.json.gz"))


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadscope.loader.header_pack._PACK_CAP", 1000)
    path = write_pack(tmp_path, " " * 100_000)
    (found,) = open_checkpoint(path).findings
    assert found.code == "LS108"
    assert "1,000 bytes" in found.message


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        (
            "model.layers.3.mlp.experts.17.up_proj",
            "model.layers.{layer}.mlp.experts.{expert}.up_proj",
        ),
        ("model.layers.3.shared_experts.2", "model.layers.{layer}.shared_experts.2"),
        ("model.norm.weight", "model.norm.weight"),
    ],
)
def test_indices_become_holes(name: str, pattern: str) -> None:
    assert pattern_of(name) == pattern


SOUND = shard_bytes(header_of({**HELD[ONE], **HELD[TWO]}))
HEADER_END = 8 + struct.unpack("<Q", SOUND[:8])[0]


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, HEADER_END - 1), st.binary(max_size=3), st.integers(0, 3)),
        min_size=1,
        max_size=4,
    )
)
def test_a_mutated_header_gives_other_tensors_or_an_error(
    tmp_path: Path, edits: list[tuple[int, bytes, int]]
) -> None:
    raw = SOUND
    for at, new, dropped in edits:
        raw = raw[:at] + new + raw[at + dropped :]
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "m.safetensors").write_bytes(raw)
    checkpoint = open_checkpoint(tmp_path)
    json.dumps([f.as_json() for f in checkpoint.findings]).encode()
    if not checkpoint.findings:
        _assert_tiles(checkpoint)
        with safe_open(tmp_path / "m.safetensors", "np") as judge:
            assert set(judge.keys()) == set(checkpoint.tensors)


def _assert_tiles(checkpoint: Checkpoint) -> None:
    """Without a finding, the tensors cover the data part exactly, whatever their names became."""
    end = checkpoint.shards[0].data_start
    for tensor in sorted(checkpoint.tensors.values(), key=lambda t: (t.start, t.stop)):
        assert tensor.start == end
        end += math.prod(tensor.shape) * DTYPE_BITS[tensor.dtype] // 8
        assert tensor.stop == end
    assert end == checkpoint.shards[0].size
