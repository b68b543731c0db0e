"""Checksums are of the bytes, whatever holds them; a manifest is understood or refused in words."""

import hashlib
import os
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from conftest import open_pack
from support.golden_checkpoint import tensor_bytes, write_golden_checkpoint
from support.linear_specs import Spec
from support.safetensors_files import write_checkpoint
from torch import Tensor

from loadscope.loader.checkpoint import Checkpoint, open_checkpoint
from loadscope.loader.checkpoint import Tensor as Stored
from loadscope.loader.checksums import (
    ALGORITHMS,
    CHUNK_BYTES,
    THREADS,
    Manifest,
    Mismatch,
    checksum,
    compare,
    file_checksums,
    hasher,
    overall,
    parse_manifest,
    tensor_checksum,
)
from loadscope.loader.dtypes import TORCH_NAMES
from loadscope.loader.read import ReadError

VARIANT = "v3-w4afp8"
XXH3_OF_NOTHING = "99aa06d3014798d86001c324468d497f"
SHA256_OF_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
A, B = "0" * 31 + "a", "0" * 31 + "b"
LONG = "c" * 64


def raw(tensor: Tensor) -> bytes:
    """Row-major bytes, element by element through numpy."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return np.array(tensor.view(width).numpy(), order="C").tobytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_golden_checkpoint(VARIANT, tmp_path_factory.mktemp("disk") / VARIANT)


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Checkpoint:
    return open_checkpoint(folder)


BIG = "model.big.weight"
BIG_BYTES = 2 * CHUNK_BYTES + 12


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Tensors of several chunks, of none, and of a few bytes, each of bytes that differ."""
    sizes = {BIG: BIG_BYTES // 4, "model.small.weight": 3, "model.none.weight": 0}
    sizes["model.second.weight"] = CHUNK_BYTES // 4
    specs = [Spec(name, "I32", (size,)) for name, size in sizes.items()]
    folder = tmp_path_factory.mktemp("long") / "long"
    return open_checkpoint(write_checkpoint(folder, {}, {"one.safetensors": specs}, tensor_bytes))


def bytes_in_files(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Every tensor's bytes by its place in its file."""
    found = {}
    for name, tensor in checkpoint.tensors.items():
        data = (checkpoint.directory / checkpoint.shards[tensor.file].name).read_bytes()
        found[name] = data[tensor.start : tensor.stop]
    return found


def test_the_algorithms_are_the_published_ones() -> None:
    assert ALGORITHMS == ("xxh3-128", "sha256")
    assert checksum(b"", "xxh3-128") == XXH3_OF_NOTHING
    assert checksum(b"abc", "sha256") == SHA256_OF_ABC


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_stream_in_any_pieces_has_the_checksum_of_the_whole(algorithm: str) -> None:
    data = bytes(range(256)) * 1000
    stream = hasher(algorithm)
    for start, stop in pairwise([0, 1, 1, 7, 4096, 200_001, len(data)]):
        stream.update(memoryview(data)[start:stop])
    assert stream.hexdigest() == checksum(memoryview(data), algorithm)


@pytest.mark.parametrize("ask", [hasher, lambda name: checksum(b"", name)], ids=["hasher", "sum"])
def test_an_unknown_algorithm_is_refused_with_those_there_are(ask: Any) -> None:
    with pytest.raises(ValueError, match=r"'md5'; expected one of xxh3-128, sha256"):
        ask("md5")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", sorted(TORCH_NAMES))
def test_a_tensor_of_any_dtype_has_the_checksum_of_its_bytes(dtype: str, algorithm: str) -> None:
    torch_dtype = getattr(torch, TORCH_NAMES[dtype])
    data = torch.arange(240, dtype=torch.uint8)
    data = data % 2 if dtype == "BOOL" else data
    whole = data.view(torch_dtype).reshape(3, 2, -1)
    views = {
        "whole": whole,
        "turned": whole.transpose(0, 2),
        "every other": whole[:, :, ::2],
        "spread": whole[:1].expand(4, -1, -1),
        "one element": whole[0, 1, 0],
        "nothing": whole[:0],
    }
    for what, view in views.items():
        assert tensor_checksum(view, algorithm) == checksum(raw(view), algorithm), what


def test_a_tensor_longer_than_a_chunk_counts_as_a_whole() -> None:
    tensor = torch.arange(CHUNK_BYTES + 3, dtype=torch.int64).to(torch.uint8)
    assert tensor_checksum(tensor) == checksum(bytes(tensor.numpy()))
    changed = tensor.clone()
    changed[-1] += 1
    assert tensor_checksum(changed) != tensor_checksum(tensor)


def test_equal_numbers_of_other_bits_differ() -> None:
    zero = torch.zeros(2)
    nan = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert tensor_checksum(zero) != tensor_checksum(-zero)
    assert tensor_checksum(nan[:1]) != tensor_checksum(nan[1:])
    assert tensor_checksum(torch.nn.Parameter(zero)) == tensor_checksum(zero)


@pytest.mark.gpu
def test_a_tensor_on_a_device_has_the_checksum_that_it_has_on_the_host() -> None:
    codes = torch.arange(2 * CHUNK_BYTES + 32, dtype=torch.int64).to(torch.uint8).reshape(8, -1)
    for dtype in (torch.float8_e4m3fn, torch.bfloat16, torch.float32):
        tensor = codes.view(dtype)
        for view in (tensor, tensor.t(), tensor[:, 1::3], tensor[0, 0], tensor[:0]):
            assert tensor_checksum(view.cuda()) == tensor_checksum(view)


def test_overall_is_the_three_lines_of_the_description() -> None:
    sums = {"b": A, "a.weight": B, "Ä": A}
    h = xxhash.xxh3_128()
    for name in sorted(sums):
        h.update(f"{name} {sums[name]}\n".encode())
    assert overall(sums) == h.hexdigest()
    assert overall(dict(reversed(sums.items()))) == overall(sums)
    lines = f"a.weight {B}\nb {A}\nÄ {A}\n"
    assert overall(sums, "sha256") == hashlib.sha256(lines.encode("utf-8")).hexdigest()
    assert overall({}) == XXH3_OF_NOTHING


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_files_have_the_checksums_of_their_tensors_in_file_order(
    checkpoint: Checkpoint, algorithm: str
) -> None:
    found = list(file_checksums(checkpoint, algorithm=algorithm))
    expected = {n: checksum(data, algorithm) for n, data in bytes_in_files(checkpoint).items()}
    assert dict(found) == expected
    places = [(checkpoint.tensors[n].file, checkpoint.tensors[n].start) for n, _sum in found]
    assert places == sorted(places)
    assert len({file for file, _start in places}) == 3


def test_only_the_named_tensors_are_read(checkpoint: Checkpoint) -> None:
    every = dict(file_checksums(checkpoint))
    names = list(every)[1::7]
    read: list[int] = []
    found = list(file_checksums(checkpoint, reversed(names), gate=read.append))
    assert found == [(name, every[name]) for name in names]
    assert sum(read) == sum(
        checkpoint.tensors[name].stop - checkpoint.tensors[name].start for name in names
    )
    assert list(file_checksums(checkpoint, [])) == []


def test_tensors_of_many_chunks_of_few_bytes_and_of_none(long: Checkpoint) -> None:
    found = dict(file_checksums(long))
    assert found == {n: checksum(data) for n, data in bytes_in_files(long).items()}
    assert len(found) == 4


def test_the_scan_sees_every_byte_in_whole_elements_one_call_at_a_time(long: Checkpoint) -> None:
    pieces: dict[str, list[bytes]] = {}
    busy, buffers = threading.Lock(), set[int]()

    def scan(name: str, tensor: Stored, data: memoryview) -> None:
        assert busy.acquire(blocking=False), "another thread is in the scan"
        assert tensor == long.tensors[name]
        buffers.add(id(data.obj))
        # long enough for others to come, were they let in
        checksum(data, "sha256")
        pieces.setdefault(name, []).append(bytes(data))
        busy.release()

    assert dict(file_checksums(long, scan=scan)) == dict(file_checksums(long))
    expected = {n: data for n, data in bytes_in_files(long).items() if data}
    assert {name: b"".join(parts) for name, parts in pieces.items()} == expected
    assert all(len(part) % 4 == 0 for parts in pieces.values() for part in parts)
    # memory is bounded: a chunk for each thread
    assert len(buffers) <= THREADS
    assert max(len(part) for part in pieces[BIG]) == CHUNK_BYTES


def hashing_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("loadscope-hash")]


class Stop(Exception):
    """What a gate raises."""


def test_what_the_gate_raises_passes_through_and_nothing_goes_on(long: Checkpoint) -> None:
    calls: list[int] = []

    def gate(nbytes: int) -> None:
        calls.append(nbytes)
        raise Stop("enough")

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Stop, match="enough"):
        list(file_checksums(long, gate=gate))
    assert hashing_threads() == []
    assert len(calls) <= THREADS
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_who_has_seen_enough_leaves_nothing_open(long: Checkpoint) -> None:
    before = len(os.listdir("/proc/self/fd"))
    found = file_checksums(long)
    assert isinstance(found, Iterator)
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert hashing_threads() == []
    assert len(os.listdir("/proc/self/fd")) == before


def spoilt(folder: Path, tmp_path: Path) -> tuple[Checkpoint, Path]:
    """A copy whose headers have been read, and its second file."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    checkpoint = open_checkpoint(copy)
    return checkpoint, copy / checkpoint.shards[1].name


def test_a_file_that_is_gone_is_named_without_its_folder(folder: Path, tmp_path: Path) -> None:
    checkpoint, file = spoilt(folder, tmp_path)
    file.unlink()
    with pytest.raises(ReadError) as caught:
        list(file_checksums(checkpoint))
    assert file.name in str(caught.value)
    assert "No such file" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_file_that_ends_early_is_named_with_the_byte(folder: Path, tmp_path: Path) -> None:
    checkpoint, file = spoilt(folder, tmp_path)
    size = file.stat().st_size
    os.truncate(file, size - 1)
    with pytest.raises(ReadError, match=f"{file.name} ends at byte {size - 1}; expected .* {size}"):
        list(file_checksums(checkpoint))


def test_a_header_pack_has_no_bytes() -> None:
    with pytest.raises(ReadError, match="holds headers only"):
        list(file_checksums(open_pack("deepseek-v2-lite")))


def test_a_name_that_is_not_there_is_refused_before_anything_is_read(
    checkpoint: Checkpoint,
) -> None:
    with pytest.raises(ValueError, match=r"no tensor model\.nrom\.weight"):
        file_checksums(checkpoint, ["model.norm.weight", "model.nrom.weight"])


SUMS = {"a": A, "b": B}
GOOD: dict[str, tuple[object, Manifest]] = {
    "flat": (SUMS, Manifest("xxh3-128", SUMS)),
    "flat, sha256 by its length": ({"a": LONG}, Manifest("sha256", {"a": LONG})),
    "long": (
        {"algorithm": "sha256", "tensors": {"a": LONG}},
        Manifest("sha256", {"a": LONG}),
    ),
    "with overall": (
        {"algorithm": "xxh3-128", "tensors": SUMS, "overall": overall(SUMS)},
        Manifest("xxh3-128", SUMS, overall(SUMS)),
    ),
    "no algorithm": ({"tensors": {"a": LONG}}, Manifest("sha256", {"a": LONG})),
    "capitals": (
        {"tensors": {"a": A.upper(), "b": B}, "overall": overall(SUMS).upper()},
        Manifest("xxh3-128", SUMS, overall(SUMS)),
    ),
    "empty": ({}, Manifest("xxh3-128", {})),
    "overall is null": ({"tensors": SUMS, "overall": None}, Manifest("xxh3-128", SUMS)),
    "a tensor of that name": ({"tensors": A}, Manifest("xxh3-128", {"tensors": A})),
}
BAD: dict[str, tuple[object, str]] = {
    "a list": ([A], "found a list; expected an object"),
    "nothing": (None, "found nothing; expected an object"),
    "unknown algorithm": ({"algorithm": "md5", "tensors": SUMS}, "'md5'; expected one of xxh3-128"),
    "algorithm is no text": ({"algorithm": [1], "tensors": SUMS}, "expected one of xxh3-128"),
    "no tensors": ({"algorithm": "sha256"}, "tensors: found nothing"),
    "tensors is a list": ({"algorithm": "sha256", "tensors": [A]}, "tensors: found a list"),
    "another field": ({"tensors": SUMS, "version": "1"}, "field 'version'; expected only algori"),
    "too short": ({"tensors": {"a": A[:-1]}}, "a: found .* \\(31 characters\\); expected 32 hex"),
    "of another algorithm": ({"algorithm": "sha256", "tensors": SUMS}, "a: .* expected 64 hex"),
    "mixed": ({"a": A, "b": LONG}, "b: found .* expected 32 hex digits, xxh3-128"),
    "no hex": ({"a": "g" * 32}, "a: found 'gggg.* expected 32 hex"),
    "a number": ({"a": 7}, "a: found a number; expected 32 hex"),
    "a sign": ({"a": "+" + A[1:]}, "a: found '.0000.*expected 32 hex"),
    "overall of others": (
        {"tensors": SUMS, "overall": overall({"a": A})},
        f"overall is {overall({'a': A})}, but these checksums give {overall(SUMS)}",
    ),
    "overall is no hex": ({"tensors": SUMS, "overall": 1}, "overall: found a number"),
}


@pytest.mark.parametrize("what", GOOD)
def test_a_manifest_is_understood(what: str) -> None:
    document, expected = GOOD[what]
    assert parse_manifest(document) == expected


@pytest.mark.parametrize("what", BAD)
def test_a_manifest_that_is_none_is_refused_in_words(what: str) -> None:
    document, message = BAD[what]
    with pytest.raises(ValueError, match=message):
        parse_manifest(document)


def test_a_comparison_names_what_differs_and_what_only_one_side_has() -> None:
    manifest = Manifest("xxh3-128", {"same": A, "other": A, "not sent": A})
    found = {"same": A, "other": B, "not promised": B}
    assert compare(manifest, found) == [
        Mismatch("not promised", None, B),
        Mismatch("not sent", A, None),
        Mismatch("other", A, B),
    ]
    assert compare(Manifest("xxh3-128", found), found) == []


def test_a_checkpoint_agrees_with_its_own_manifest(checkpoint: Checkpoint) -> None:
    sums = dict(file_checksums(checkpoint))
    manifest = parse_manifest({"tensors": sums, "overall": overall(sums)})
    assert compare(manifest, dict(file_checksums(checkpoint))) == []
