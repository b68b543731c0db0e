"""A plain checkpoint as fp8 blocks in plain torch, and the same with the values of the blocks."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

BLOCK = 128
LARGEST = 448.0  # of e4m3
SHARDS = 5
UNQUANTISED = ("weights_proj.weight",)
QUANTISED = ("_proj.weight", "_mqa.weight", "indexer.wq_b.weight", "indexer.wk.weight")


def quantise(
    plain: Path, blocks: Path, values: Path, fields: Mapping[str, str], absorbed: torch.dtype
) -> None:
    """Write two checkpoints from one: fp8 blocks with scales, and what they stand for in float32.

    kv_b_proj's values are rounded to the dtype in which an engine absorbs it.
    """
    config = json.loads((plain / "config.json").read_text())
    stored: dict[str, Tensor] = {}
    meant: dict[str, Tensor] = {}
    for name, tensor in sorted(_tensors(plain).items()):
        stored[name] = meant[name] = tensor
        if name.endswith(QUANTISED) and not name.endswith(UNQUANTISED):
            codes, scales = to_blocks(tensor, is_power_of_two="scale_fmt" in fields)
            stored[name], stored[f"{name}_scale_inv"] = codes, scales
            meant[name] = codes.float() * _spread(scales, tensor.shape)
        if ".kv_b_proj." in name:
            meant[name] = meant[name].to(absorbed).float()
    quantisation = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        **fields,
    }
    _write(blocks, {**config, "quantization_config": quantisation}, stored)
    _write(values, config, meant)


def to_blocks(values: Tensor, *, is_power_of_two: bool) -> tuple[Tensor, Tensor]:
    """Codes [rows, columns] and one scale per block, block by block; value = code x scale."""
    rows, columns = values.shape
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    scales = torch.empty(-(-rows // BLOCK), -(-columns // BLOCK))
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            place = (slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK))
            scale = values[place].abs().max() / LARGEST
            scales[i, j] = torch.exp2(torch.log2(scale).ceil()) if is_power_of_two else scale
            codes[place] = (values[place] / scales[i, j]).clamp(-LARGEST, LARGEST).to(codes.dtype)
    return codes, scales


def _spread(scales: Tensor, shape: torch.Size) -> Tensor:
    every = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return every[: shape[0], : shape[1]]


def _tensors(folder: Path) -> dict[str, Tensor]:
    return {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}


def _write(folder: Path, config: Mapping[str, object], tensors: Mapping[str, Tensor]) -> None:
    """Tensors dealt out one by one, so that a weight and its scale lie in different shards."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    names, weight_map = list(tensors), {}
    for number in range(SHARDS):
        file = f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        own = {name: tensors[name].contiguous() for name in names[number::SHARDS]}
        save_file(own, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(own, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
