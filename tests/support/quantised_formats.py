"""Every format in use: what a config says of it, how matrices are stored, what sizes it needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from support.stored import E8M0, Storage

F16, F32, BF16 = torch.float16, torch.float32, torch.bfloat16


@dataclass(frozen=True, slots=True)
class Form:
    """`rows` and `columns`: what every cut of a quantised matrix must be a multiple of.

    `excluding` is the config's list of unquantised modules. `options` are the loader's.
    """

    name: str
    entry: Mapping[str, Any]
    linear: Storage
    expert: Storage
    rows: int = 1
    columns: int = 1
    excluding: str = "ignored_layers"
    options: Mapping[str, Any] = field(default_factory=dict)
    has_cache_scales: bool = False
    # columns of every whole matrix are multiples too: groups are never ragged
    is_even: bool = False

    @property
    def is_wna16(self) -> bool:
        return self.options.get("quantization") == "moe_wna16"


def _fp8(name: str, block: tuple[int, int], entry: Mapping[str, Any], **storage: Any) -> Form:
    stored = Storage("block", block=block, **storage)
    return Form(name, entry, stored, stored, *block, has_cache_scales=True)


def _fp8_entry(block: tuple[int, int], **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": list(block),
        **more,
    }


def _tensor_entry(scheme: str) -> dict[str, Any]:
    return {"quant_method": "fp8", "activation_scheme": scheme}


def _compressed(
    strategy: str, kind: str = "float", *, dynamic: bool = True, **weights: Any
) -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "type": kind, "strategy": strategy, **weights},
        "input_activations": {"num_bits": 8, "type": kind, "dynamic": dynamic},
    }
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


def _compressed_form(name: str, entry: Mapping[str, Any], storage: Storage, **more: Any) -> Form:
    return Form(name, entry, storage, storage, excluding="ignore", **more)


def _int8(name: str, storage: Storage, entry: Mapping[str, Any], *grain: int) -> Form:
    return Form(name, entry, storage, storage, *grain)


def _awq(name: str, group: int, floats: torch.dtype, options: Mapping[str, Any]) -> Form:
    stored = Storage("awq", group=group, floats=floats)
    entry = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True}
    return Form(
        name, entry, stored, stored, 8, group,
        excluding="modules_to_not_convert", options=options, is_even=True,
    )  # fmt: skip


def _w4afp8(name: str, scale_dtype: torch.dtype) -> Form:
    experts = Storage("int4", group=128, scale_dtype=scale_dtype)
    return Form(name, {"quant_method": "w4afp8"}, Storage("block"), experts, 128, 128, is_even=True)


def _modelopt_fp8(name: str, **entry: Any) -> Form:
    return Form(
        name,
        {"quant_method": "modelopt", "quant_algo": "FP8", **entry},
        STATIC,
        STATIC,
        excluding="exclude_modules",
        has_cache_scales="kv_cache_quant_algo" in entry,
    )


def _nvfp4(name: str, **entry: Any) -> Form:
    whole = {"quant_method": "modelopt_fp4", "quant_algo": "NVFP4", "group_size": 16, **entry}
    stored = Storage("nvfp4")
    has_cache_scales = "kv_cache_quant_algo" in entry
    return Form(
        name, whole, stored, stored, 1, 16,
        excluding="exclude_modules", has_cache_scales=has_cache_scales, is_even=True,
    )  # fmt: skip


TENSOR = Storage("tensor", scale="weight_scale")
STATIC = Storage("tensor", scale="weight_scale", is_static=True)
CHANNEL = Storage("channel", scale="weight_scale")
STATIC_CHANNEL = Storage("channel", scale="weight_scale", is_static=True)
BF16_CHANNEL = Storage("channel", scale="weight_scale", scale_dtype=BF16)
INT8 = Storage("channel", codes=torch.int8, scale="weight_scale")
INT8_BLOCK = Storage("block", codes=torch.int8, block=(64, 64))
PLAIN, HALF = Storage(), Storage(floats=F16)
BLOCK, SMALL, WIDE = (128, 128), (64, 32), (32, 64)
POWERS = {"has_power_scales": True}
WNA16 = {"quantization": "moe_wna16"}

FORMS = {
    form.name: form
    for form in (
        Form("bf16", {}, PLAIN, PLAIN),
        Form("f16", {}, HALF, HALF),
        _fp8("fp8 block", BLOCK, _fp8_entry(BLOCK)),
        _fp8("fp8 block 64x32", SMALL, _fp8_entry(SMALL)),
        _fp8("fp8 block 32x64, bf16 scales", WIDE, _fp8_entry(WIDE), scale_dtype=BF16),
        _fp8("fp8 block ue8m0", BLOCK, _fp8_entry(BLOCK, scale_fmt="ue8m0"), **POWERS),
        _fp8("fp8 block e8m0 bytes", SMALL, _fp8_entry(SMALL, scale_fmt="ue8m0"), scale_dtype=E8M0),
        Form("fp8 tensor", _tensor_entry("dynamic"), TENSOR, TENSOR, has_cache_scales=True),
        Form("fp8 tensor static", _tensor_entry("static"), STATIC, STATIC, has_cache_scales=True),
        Form("fp8 channel", {"quant_method": "w8a8_fp8"}, CHANNEL, CHANNEL),
        _compressed_form("compressed channel", _compressed("channel"), BF16_CHANNEL),
        _compressed_form(
            "compressed channel static", _compressed("channel", dynamic=False), STATIC_CHANNEL
        ),
        _compressed_form("compressed tensor", _compressed("tensor"), TENSOR),
        _compressed_form(
            "compressed tensor static",
            {**_compressed("tensor", dynamic=False), "kv_cache_scheme": {"num_bits": 8}},
            STATIC,
            has_cache_scales=True,
        ),
        _compressed_form(
            "compressed block",
            _compressed("block", block_structure=list(SMALL)),
            Storage("block", block=SMALL, scale="weight_scale"),
            rows=SMALL[0],
            columns=SMALL[1],
        ),
        _compressed_form("compressed int8", _compressed("channel", "int"), INT8),
        _int8("int8 channel", INT8, {"quant_method": "w8a8_int8"}),
        _int8(
            "int8 block",
            INT8_BLOCK,
            {"quant_method": "blockwise_int8", "weight_block_size": [64, 64]},
            64,
            64,
        ),
        _awq("awq_marlin, groups of 32", 32, F16, {}),
        _awq("awq_marlin, groups of 64", 64, BF16, {}),
        _awq("moe_wna16, groups of 32", 32, BF16, WNA16),
        _awq("moe_wna16, groups of 64", 64, F16, WNA16),
        _awq("moe_wna16, groups of 128", 128, F16, WNA16),
        _w4afp8("w4afp8", BF16),
        _w4afp8("w4afp8, f32 scales", F32),
        _modelopt_fp8("modelopt fp8"),
        _modelopt_fp8("modelopt fp8, fp8 cache", kv_cache_quant_algo="FP8"),
        _nvfp4("nvfp4"),
        _nvfp4("nvfp4, fp8 cache", kv_cache_quant_algo="FP8"),
    )
}
