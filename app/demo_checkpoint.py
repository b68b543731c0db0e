"""The demo's model to safetensors files: 100 MB in eight shards, one seed for the same bytes."""

import json
import math
import secrets
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from loadscope.app.demo_model import CONFIG, FIRST_OF_SHARD, Entry, Kind, entries

_STD = 0.02  # of a weight, as initializer_range
_FP8_MAX = 448.0
_DTYPES: dict[Kind, tuple[str, int]] = {
    "fp8": ("F8_E4M3", 1),
    "scale": ("F32", 4),
    "weight": ("BF16", 2),
    "norm": ("BF16", 2),
    "bias": ("F32", 4),
}


def write_demo_checkpoint(directory: Path, *, seed: int = 0) -> Path:
    """Write the checkpoint and return `directory`, which must not exist or be empty.

    It appears whole or not at all: a killed writer leaves a hidden `.NAME.….partial` beside it.
    """
    if directory.exists() and any(directory.iterdir()):
        raise ValueError(f"{directory.name}: found files in it; expected a new or empty directory")
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}.partial")
    partial.mkdir()
    try:
        _write(partial, seed)
        if directory.exists():
            directory.rmdir()
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return directory


def _write(directory: Path, seed: int) -> None:
    shards = _shards()
    owners: dict[str, str] = {}
    for number, members in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):06d}.safetensors"
        _write_shard(directory / name, members, seed)
        owners |= {entry.name: name for entry in members}
    total = sum(_byte_count(entry) for members in shards for entry in members)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(owners.items()))}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=2))


def _shards() -> list[list[Entry]]:
    shards: list[list[Entry]] = []
    for entry in entries():
        if entry.name in FIRST_OF_SHARD:
            shards.append([])
        shards[-1].append(entry)
    assert len(shards) == len(FIRST_OF_SHARD), (len(shards), FIRST_OF_SHARD)
    return shards


def _write_shard(path: Path, members: list[Entry], seed: int) -> None:
    header = json.dumps(_header(members), separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # data stays aligned for readers that map the file
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for entry in members:
            file.write(_content(entry, seed))


def _header(members: list[Entry]) -> dict[str, object]:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry in members:
        begin, end = end, end + _byte_count(entry)
        dtype = _DTYPES[entry.kind][0]
        header[entry.name] = {"dtype": dtype, "shape": entry.shape, "data_offsets": [begin, end]}
    return header


def _byte_count(entry: Entry) -> int:
    return math.prod(entry.shape) * _DTYPES[entry.kind][1]


def _content(entry: Entry, seed: int) -> bytes:
    generator = np.random.default_rng([seed, zlib.crc32(entry.value_of.encode())])
    return _MAKERS[entry.kind](generator, math.prod(entry.shape))


def _fp8(generator: np.random.Generator, count: int) -> bytes:
    return generator.bytes(count).translate(_NORMAL_FP8)


def _scale(generator: np.random.Generator, count: int) -> bytes:
    # the largest of a block's 16,384 values is stored as 448
    largest = 4 * _STD * generator.uniform(0.8, 1.25, count)
    return (largest / _FP8_MAX).astype("<f4").tobytes()


def _weight(generator: np.random.Generator, count: int) -> bytes:
    return _to_bf16(_STD * generator.standard_normal(count, dtype=np.float32))


def _norm(generator: np.random.Generator, count: int) -> bytes:
    return _to_bf16(generator.uniform(0.5, 1.5, count).astype(np.float32))


def _bias(generator: np.random.Generator, count: int) -> bytes:
    return generator.normal(0.0, 0.1, count).astype("<f4").tobytes()


def _to_bf16(values: npt.NDArray[np.float32]) -> bytes:
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype("<u2").tobytes()


def _normal_fp8() -> bytes:
    """Uniform bytes to the E4M3 codes of normal values that reach ±448; never a NaN."""
    normal = NormalDist()
    drawn = [normal.inv_cdf((byte + 0.5) / 256) for byte in range(256)]
    known = list(_fp8_values())
    scale = _FP8_MAX / drawn[-1]
    return bytes(min(known, key=lambda pair: abs(pair[1] - x * scale))[0] for x in drawn)


def _fp8_values() -> Iterator[tuple[int, float]]:
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        if exponent == 15 and mantissa == 7:
            continue  # NaN
        size = math.ldexp(mantissa + 8 * (exponent > 0), max(exponent, 1) - 10)
        yield code, -size if code & 128 else size


_NORMAL_FP8 = _normal_fp8()
_MAKERS: dict[Kind, Callable[[np.random.Generator, int], bytes]] = {
    "fp8": _fp8,
    "scale": _scale,
    "weight": _weight,
    "norm": _norm,
    "bias": _bias,
}
