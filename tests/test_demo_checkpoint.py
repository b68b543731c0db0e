"""The demo's checkpoint is a true one: sound files, V3's names, pairs that lie apart."""

import hashlib
import json
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from loadscope.app.demo_checkpoint import write_demo_checkpoint
from loadscope.loader.checkpoint import open_checkpoint, pattern_of


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_checkpoint(tmp_path_factory.mktemp("demo") / "deepseek-v3-demo")


def test_it_opens_without_a_finding(demo: Path) -> None:
    checkpoint = open_checkpoint(demo)
    assert checkpoint.findings == ()
    assert len(checkpoint.shards) == 8
    assert 95e6 < checkpoint.total_bytes < 160e6


def test_its_names_and_dtypes_are_those_of_v3(demo: Path) -> None:
    pack = Path(__file__).parent / "data" / "headers" / "deepseek-v3.headers.json.gz"
    made, published = open_checkpoint(demo), open_checkpoint(pack)
    assert {(pattern_of(name), t.dtype) for name, t in made.tensors.items()} == {
        (pattern_of(name), t.dtype) for name, t in published.tensors.items()
    }
    assert published.config is not None
    assert made.config is not None
    assert published.config.keys() <= made.config.keys()


def test_some_pairs_lie_in_two_shards(demo: Path) -> None:
    tensors = open_checkpoint(demo).tensors
    apart = [
        layer
        for layer in range(13)
        if tensors[f"model.layers.{layer}.self_attn.q_a_proj.weight"].file
        != tensors[f"model.layers.{layer}.self_attn.kv_a_proj_with_mqa.weight"].file
    ]
    assert apart == [3, 6, 9]


def test_the_safetensors_library_reads_it_and_values_are_sane(demo: Path) -> None:
    names = set()
    for path in sorted(demo.glob("*.safetensors")):
        with safe_open(path, "pt") as shard:
            names |= set(shard.keys())
            for name in shard.keys():  # noqa: SIM118  (a safe_open is no dict)
                value = shard.get_tensor(name).float()
                assert torch.isfinite(value).all(), name
                assert value.std() > 0 or value.numel() == 1, name
    assert names == set(open_checkpoint(demo).tensors)


def test_the_draft_repeats_the_targets_embedding_and_head(demo: Path) -> None:
    index = json.loads((demo / "model.safetensors.index.json").read_text())["weight_map"]

    def read(name: str) -> torch.Tensor:
        with safe_open(demo / index[name], "pt") as shard:
            return shard.get_tensor(name)

    for target, draft in (("model.embed_tokens", "embed_tokens"), ("lm_head", "shared_head.head")):
        assert torch.equal(read(f"{target}.weight"), read(f"model.layers.12.{draft}.weight"))


def digest_of(directory: Path) -> str:
    whole = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        whole.update(path.name.encode() + path.read_bytes())
    return whole.hexdigest()


def test_a_seed_decides_every_byte(demo: Path, tmp_path: Path) -> None:
    same = write_demo_checkpoint(tmp_path / "same")
    other = write_demo_checkpoint(tmp_path / "other", seed=1)
    assert digest_of(same) == digest_of(demo) != digest_of(other)


def test_it_is_written_within_seconds(tmp_path: Path) -> None:
    began = time.process_time()
    write_demo_checkpoint(tmp_path / "demo")
    assert time.process_time() - began < 3


def test_an_interrupted_writer_leaves_nothing_to_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def stop_at_the_third(path: Path, members: object, seed: int) -> None:
        written.append(path)
        if len(written) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("loadscope.app.demo_checkpoint._write_shard", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        write_demo_checkpoint(tmp_path / "demo")
    assert list(tmp_path.iterdir()) == []


def test_files_of_others_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(ValueError, match="new or empty"):
        write_demo_checkpoint(tmp_path)


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    assert open_checkpoint(write_demo_checkpoint(tmp_path)).findings == ()
