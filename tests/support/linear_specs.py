"""The tensors of one linear layer or expert projection, by quantisation method."""

import math
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

BLOCK = 128
NVFP4_GROUP = 16
ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I8": 1, "U8": 1, "I32": 4}
Config = dict[str, Any]


class Spec(NamedTuple):
    """One tensor; `is_scale` marks those that are positive in every checkpoint."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_scale: bool = False

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def plain(config: Config, name: str, *shape: int) -> Spec:
    """`name.weight` in the dtype of the model."""
    return Spec(name + ".weight", float_tag(config), shape)


def float_tag(config: Config) -> str:
    return {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[config["torch_dtype"]]


def quantisation(config: Config) -> Mapping[str, Any]:
    return config.get("quantization_config") or {}


def linear(config: Config, name: str, rows: int, columns: int) -> Iterator[Spec]:
    """Weight and scales of a layer that the config quantises unless it is excluded."""
    excluded = quantisation(config).get("exclude_modules", ())
    if not quantisation(config) or any(fnmatchcase(name, pattern) for pattern in excluded):
        yield plain(config, name, rows, columns)
        return
    # a method that is not listed stands for one that is refused before its tensors matter
    method = _METHODS.get(quantisation(config)["quant_method"], _fp8_block)
    yield from method(config, name, rows, columns)


def scalar(name: str, tag: str = "F32") -> Spec:
    return Spec(name, tag, (), is_scale=True)


def _fp8(config: Config, name: str, rows: int, columns: int) -> Iterator[Spec]:
    if "weight_block_size" in quantisation(config):
        yield from _block("F8_E4M3", name, rows, columns)
        return
    yield Spec(name + ".weight", "F8_E4M3", (rows, columns))
    yield scalar(name + ".weight_scale")
    yield scalar(name + ".input_scale")


def _fp8_block(_: Config, name: str, rows: int, columns: int) -> Iterator[Spec]:
    yield from _block("F8_E4M3", name, rows, columns)


def _fp8_channel(_: Config, name: str, rows: int, columns: int) -> Iterator[Spec]:
    yield from _channel("F8_E4M3", name, rows, columns)


def _int8_channel(_: Config, name: str, rows: int, columns: int) -> Iterator[Spec]:
    yield from _channel("I8", name, rows, columns)


def _int8_block(_: Config, name: str, rows: int, columns: int) -> Iterator[Spec]:
    yield from _block("I8", name, rows, columns)


def _awq(config: Config, name: str, rows: int, columns: int) -> Iterator[Spec]:
    """Input dim first; eight codes of four bits to a word, along the rows of the plain matrix."""
    groups = columns // quantisation(config).get("group_size", BLOCK)
    yield Spec(name + ".qweight", "I32", (columns, rows // 8))
    yield Spec(name + ".qzeros", "I32", (groups, rows // 8))
    yield Spec(name + ".scales", float_tag(config), (groups, rows), is_scale=True)


def _w4afp8(_: Config, name: str, rows: int, columns: int) -> Iterator[Spec]:
    """Two codes of four bits to a byte in the routed experts, fp8 blocks everywhere else."""
    if ".mlp.experts." not in name:
        yield from _block("F8_E4M3", name, rows, columns)
        return
    yield Spec(name + ".weight", "I8", (rows, columns // 2))
    yield Spec(name + ".weight_scale_inv", "BF16", (rows, columns // BLOCK), is_scale=True)


def _nvfp4(_: Config, name: str, rows: int, columns: int) -> Iterator[Spec]:
    yield Spec(name + ".weight", "U8", (rows, columns // 2))
    yield Spec(name + ".weight_scale", "F8_E4M3", (rows, columns // NVFP4_GROUP), is_scale=True)
    yield scalar(name + ".weight_scale_2")
    yield scalar(name + ".input_scale")


def _channel(tag: str, name: str, rows: int, columns: int) -> Iterator[Spec]:
    yield Spec(name + ".weight", tag, (rows, columns))
    yield Spec(name + ".weight_scale", "F32", (rows, 1), is_scale=True)


def _block(tag: str, name: str, rows: int, columns: int) -> Iterator[Spec]:
    grid = (-(-rows // BLOCK), -(-columns // BLOCK))
    yield Spec(name + ".weight", tag, (rows, columns))
    yield Spec(name + ".weight_scale_inv", "F32", grid, is_scale=True)


_METHODS: dict[str, Callable[[Config, str, int, int], Iterator[Spec]]] = {
    "fp8": _fp8,
    "w8a8_fp8": _fp8_channel,
    "w8a8_int8": _int8_channel,
    "blockwise_int8": _int8_block,
    "awq": _awq,
    "w4afp8": _w4afp8,
    "modelopt_fp4": _nvfp4,
}
