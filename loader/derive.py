"""Derived tensors after the copies: computed from whole parameters, written in place on reload."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from loadscope.kernels.dequantise_awq import dequantise_awq
from loadscope.kernels.dequantise_block import dequantise_block
from loadscope.kernels.dequantise_channel_int8 import dequantise_channel_int8
from loadscope.kernels.dequantise_nvfp4 import dequantise_nvfp4
from loadscope.kernels.quantise_tensor import block_to_tensor, channel_to_tensor, normalise_fnuz
from loadscope.loader.kernel_time import KernelTime
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Plan
from loadscope.loader.tables import Derive, Output
from loadscope.loader.topology import layers_in


@dataclass(frozen=True, slots=True)
class Derived:
    """One layer's derived tensors, written, with the kernels that made them."""

    names: tuple[str, ...]
    nbytes: tuple[int, ...]
    kernels: tuple[KernelTime, ...]
    seconds: float


def derive_all(plan: Plan, store: ParameterStore) -> Iterator[Derived]:
    """Run the derive steps of the rank's layers whose inputs this write has touched."""
    held = plan.stage_masks[plan.seats[store.rank].pp]
    for derive in plan.derives:
        for layer in layers_in(derive.layers & held):
            if any(store.is_new(name) for name in input_names(derive, layer)):
                yield derive_layer(plan, store, derive, layer)


def input_names(derive: Derive, layer: int) -> list[str]:
    """The parameters that one layer's derived tensors come from."""
    return [name.replace("{layer}", str(layer)) for name in derive.inputs]


def _local(output: Output, tp_size: int) -> Output:
    if output.split_dim is None:
        return output
    shape = list(output.shape)
    shape[output.split_dim] //= tp_size
    return replace(output, shape=tuple(shape))


def derive_layer(plan: Plan, store: ParameterStore, derive: Derive, layer: int) -> Derived:
    """One layer's derived tensors: values of kv_b [heads*(nope+v), kv], split per head.

    w_kc [heads, nope, kv] and w_vc [heads, kv, v] have the values of the slices, bit for bit;
    a scale that is left goes into w_scale [] (spec 5.2, 5.3 of the reference loader). Everything
    is written in place, so addresses stay.
    """
    begun = time.perf_counter()
    module = derive.module.replace("{layer}", str(layer))
    sources = input_names(derive, layer)
    inputs = [store.parameters[name] for name in sources]
    outputs = [_local(output, plan.layout.tp_size) for output in derive.outputs]
    made = VALUES[derive.op](inputs, derive.block)
    mark = time.perf_counter()
    split = _kept_blocks if derive.op == "keep_blocks" else _split
    tensors = split(made, outputs)
    names = tuple(f"{module}.{output.name}" for output in outputs)
    sizes = []
    for name, output, values in zip(names, outputs, tensors, strict=True):
        target = store.derived_tensor(name, output)
        store.touch(name)
        target.copy_(values)
        store.stamps.derive(name, sources)
        sizes.append(target.numel() * target.element_size())
    for scalar, number in derive.scalars:
        store.scalars[f"{module}.{scalar}"] = number
    for flag, is_set in derive.flags:
        store.flags[f"{module}.{flag}"] = is_set
    done = time.perf_counter()
    shape = tuple(inputs[0].shape)
    kernels = [KernelTime("split_kv_b", module, shape, 2 * sum(sizes), done - mark)]
    if made.values is not inputs[0]:
        moved = sum(t.numel() * t.element_size() for t in (*inputs, made.values))
        kernels.insert(0, KernelTime(derive.op, sources[0], shape, moved, mark - begun))
    return Derived(names, tuple(sizes), tuple(kernels), done - begun)


@dataclass(frozen=True, slots=True)
class Values:
    """kv_b's values [rows, kv], and the scale that is left of them, if any."""

    values: torch.Tensor
    scale: torch.Tensor | None = None


def _split(made: Values, outputs: Sequence[Output]) -> list[torch.Tensor]:
    key = outputs[0]
    per_head = made.values.reshape(key.shape[0], -1, made.values.shape[1])
    tensors = [per_head[:, : key.shape[1]], per_head[:, key.shape[1] :].transpose(1, 2)]
    return [*tensors, made.scale] if made.scale is not None else tensors


def _kept_blocks(made: Values, outputs: Sequence[Output]) -> list[torch.Tensor]:
    """Codes and block scales per head, contiguous: w_kc [heads, kv, nope], w_vc [heads, v, kv]."""
    assert made.scale is not None
    heads, nope = outputs[0].shape[0], outputs[0].shape[2]
    codes = made.values.view(torch.uint8).view(heads, -1, made.values.shape[1])
    scales = made.scale.view(heads, -1, made.scale.shape[1])
    blocks = outputs[2].shape[2]
    return [
        codes[:, :nope].transpose(1, 2).contiguous().view(made.values.dtype),
        codes[:, nope:].contiguous().view(made.values.dtype),
        scales[:, :blocks].transpose(1, 2),
        scales[:, blocks:],
    ]


Block = tuple[int, int]
Inputs = Sequence[torch.Tensor]


def _expanded(codes: torch.Tensor, scale: torch.Tensor) -> Values:
    """fp8 with its tensor scale as bf16 products, for platforms that multiply in bf16."""
    # in float32 with one rounding, as torch multiplies bf16 by a float32 scalar on the CPU
    return Values((codes.to(torch.float32) * scale).to(torch.bfloat16), scale)


def _block_fnuz(inputs: Inputs, block: Block) -> Values:
    codes, scales = normalise_fnuz(inputs[0], inputs[1])
    return Values(*block_to_tensor(codes, scales, block))


def _channel_fnuz(inputs: Inputs, _block: Block) -> Values:
    return Values(*channel_to_tensor(*normalise_fnuz(inputs[0], inputs[1])))


def _blocks_to_tensor(inputs: Inputs, block: Block) -> tuple[torch.Tensor, torch.Tensor]:
    return block_to_tensor(inputs[0], inputs[1], block)


def _channels_to_tensor(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    return channel_to_tensor(inputs[0], inputs[1])


def _nvfp4(inputs: Inputs, _block: Block) -> Values:
    codes, scales, scale_2 = inputs
    return Values(dequantise_nvfp4(codes, scales, scale_2))


def _int8(inputs: Inputs, _block: Block) -> Values:
    return Values(dequantise_channel_int8(inputs[0], inputs[1]))


VALUES: dict[str, Callable[[Inputs, Block], Values]] = {
    "copy": lambda inputs, _block: Values(inputs[0]),
    "keep_blocks": lambda inputs, _block: Values(inputs[0], inputs[1]),
    "dequantise_awq": lambda inputs, _block: Values(dequantise_awq(*inputs).t()),
    "dequantise_nvfp4": _nvfp4,
    "dequantise_block": lambda inputs, block: Values(dequantise_block(inputs[0], inputs[1], block)),
    "dequantise_channel_int8": _int8,
    "block_to_tensor": lambda inputs, block: Values(*_blocks_to_tensor(inputs, block)),
    "block_to_tensor_fnuz": _block_fnuz,
    "block_to_tensor_expanded": lambda inputs, block: _expanded(*_blocks_to_tensor(inputs, block)),
    "channel_to_tensor": lambda inputs, _block: Values(*_channels_to_tensor(inputs)),
    "channel_to_tensor_fnuz": _channel_fnuz,
    "channel_to_tensor_expanded": lambda inputs, _block: _expanded(*_channels_to_tensor(inputs)),
}
