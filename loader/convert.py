"""Operations that turn stored tensors into what a parameter holds, by the name a plan gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from loadscope.kernels.dequantise_awq import dequantise_awq
from loadscope.kernels.dequantise_block import dequantise_block
from loadscope.kernels.dequantise_nvfp4 import dequantise_nvfp4
from loadscope.kernels.merge_scales import rescale_codes
from loadscope.kernels.quantise_block_ue8m0 import quantise_block_ue8m0
from loadscope.kernels.repack_awq import repack_awq_codes, repack_awq_zeros, transpose_scales
from loadscope.loader.schema import Source

Inputs = Sequence[torch.Tensor]
Operation = Callable[[Source, Inputs, torch.dtype], torch.Tensor]

# joins of scalars are part of the copying, too small to be timed one by one
SMALL = frozenset({"greatest"})


@dataclass(frozen=True, slots=True)
class Converted:
    """The values of a source's extent, and how many bytes the operation read and wrote."""

    values: torch.Tensor
    nbytes: int


def convert(source: Source, inputs: Inputs, target: torch.Tensor) -> Converted:
    """Run a carrier's operation on the target's device; `inputs` are in the plan's order.

    Raises ValueError if an input does not have the shape that the operation needs.
    """
    assert source.convert is not None
    placed = [tensor.to(target.device) for tensor in inputs]
    values = OPERATIONS[source.convert](source, placed, target.dtype)
    moved = sum(t.numel() * t.element_size() for t in (*placed, values))
    return Converted(values, moved)


def scales_differ(source: Source, inputs: Inputs, dtype: torch.dtype) -> bool:
    """Whether scalars that share one place are unequal as the parameter will hold them."""
    if source.convert != "greatest":
        return False
    first, *others = [tensor.reshape(()).to(dtype) for tensor in inputs]
    return any(bool(first != other) for other in others)


def greatest(source: Source, inputs: Inputs, dtype: torch.dtype) -> torch.Tensor:
    """The greatest of several scalars, in every element of the extent: no order can change it."""
    values = torch.stack([tensor.reshape(()).to(dtype) for tensor in inputs])
    return values.max().expand(source.extent)


def _dequantise_block(source: Source, inputs: Inputs, dtype: torch.dtype) -> torch.Tensor:
    rows, columns = source.arguments
    return dequantise_block(inputs[0], inputs[1], (rows, columns), dtype)


def _dequantise_awq(_source: Source, inputs: Inputs, dtype: torch.dtype) -> torch.Tensor:
    return dequantise_awq(*inputs).t().to(dtype)


def _dequantise_nvfp4(_source: Source, inputs: Inputs, dtype: torch.dtype) -> torch.Tensor:
    codes, scales, scale_2 = inputs
    return dequantise_nvfp4(codes, scales, scale_2, dtype)


def _rescale(_source: Source, inputs: Inputs, _dtype: torch.dtype) -> torch.Tensor:
    codes, own, *others = inputs
    merged = torch.stack([scale.reshape(()) for scale in (own, *others)]).max()
    return rescale_codes(codes, own.reshape(()), merged)


def _repack_codes(_source: Source, inputs: Inputs, _dtype: torch.dtype) -> torch.Tensor:
    return repack_awq_codes(inputs[0])


def _repack_zeros(source: Source, inputs: Inputs, _dtype: torch.dtype) -> torch.Tensor:
    return repack_awq_zeros(inputs[0], repeat=source.arguments[0])


def _transpose_scales(source: Source, inputs: Inputs, dtype: torch.dtype) -> torch.Tensor:
    return transpose_scales(inputs[0], repeat=source.arguments[0]).to(dtype)


def _quantise(_source: Source, inputs: Inputs, _dtype: torch.dtype) -> torch.Tensor:
    return quantise_block_ue8m0(inputs[0])[0]


def _quantised_scales(_source: Source, inputs: Inputs, _dtype: torch.dtype) -> torch.Tensor:
    return quantise_block_ue8m0(inputs[0])[1]


OPERATIONS: dict[str, Operation] = {
    "dequantise_awq": _dequantise_awq,
    "dequantise_block": _dequantise_block,
    "dequantise_nvfp4": _dequantise_nvfp4,
    "greatest": greatest,
    "quantise_block_ue8m0": _quantise,
    "repack_awq_codes": _repack_codes,
    "repack_awq_zeros": _repack_zeros,
    "rescale_codes": _rescale,
    "scales_block_ue8m0": _quantised_scales,
    "transpose_scales": _transpose_scales,
}
