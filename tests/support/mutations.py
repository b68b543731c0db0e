"""One tensor of a checkpoint changed, and what a plan must say about it."""

import math
from collections.abc import Callable
from random import Random
from typing import Any

from loadscope.loader.checkpoint import Checkpoint
from support.in_memory import renamed, with_dtype, with_shape, without
from support.names import expert_of

FLOATS = ("BF16", "F16", "F32")
LINEARS = ("_proj", "_proj_with_mqa", "indexer.wk", "indexer.wq_b")
# codes of which one must be told, subject, elements; None where only the name must be told
Told = tuple[tuple[str, ...], str, Any]
Mutation = Callable[[Checkpoint, str, Random], tuple[Checkpoint, Told | None]]

# no cast may lead from the first to any of the others
_WRONG_DTYPES = {
    "BF16": ("I8", "I32", "F8_E4M3"),
    "F16": ("I8", "I32", "F8_E4M3"),
    "F32": ("I32", "U8", "F8_E4M3"),
    "F8_E4M3": ("BF16", "F32"),
    "I8": ("U8", "BF16", "F8_E4M3"),
    "U8": ("I8", "BF16", "F8_E4M3"),
    "I32": ("I8", "F16", "F32"),
}


def delete(checkpoint: Checkpoint, name: str, random: Random) -> tuple[Checkpoint, None]:
    return without(checkpoint, name), None


def rename(checkpoint: Checkpoint, name: str, random: Random) -> tuple[Checkpoint, Told]:
    """A spelling mistake; the unknown name must be told."""
    *head, module, leaf = name.split(".")
    choices = [
        ".".join([*head, module + "_", leaf]),
        ".".join([*head, module, leaf + "s"]),
        "modle." + name.removeprefix("model."),
    ]
    if expert_of(name) is not None:
        choices.append(name.replace(".experts.", ".experts.0"))
    new_name = random.choice(choices)
    return renamed(checkpoint, name, new_name), (("LS301",), new_name, None)


def change_dtype(checkpoint: Checkpoint, name: str, random: Random) -> tuple[Checkpoint, Told]:
    """A dtype that no cast may lead away from."""
    tensor = checkpoint.tensors[name]
    wrong = random.choice(_WRONG_DTYPES[tensor.dtype])
    codes = _dtype_codes(name, tensor.dtype, wrong)
    return with_dtype(checkpoint, name, wrong), (codes, name, math.prod(tensor.shape))


def _dtype_codes(name: str, right: str, wrong: str) -> tuple[str, ...]:
    """A linear's weight that is quantised, or is not, against the config has a code of its own."""
    module, _, leaf = name.rpartition(".")
    is_weight = leaf in ("weight", "qweight") and module.endswith(LINEARS)
    is_quantisable = is_weight and not module.endswith("eh_proj")
    if not is_quantisable or (right in FLOATS) == (wrong in FLOATS):
        return ("LS402",)
    # this one may be in fp8 blocks where others are: then its scale is missed
    is_alternative = module.endswith("indexer.weights_proj") and wrong == "F8_E4M3"
    return ("LS403", "LS504") if is_alternative else ("LS403",)


def change_shape(checkpoint: Checkpoint, name: str, random: Random) -> tuple[Checkpoint, Told]:
    """One dim by one; a scalar becomes two numbers."""
    shape = list(checkpoint.tensors[name].shape) or [1]
    dim = random.randrange(len(shape))
    shape[dim] += random.choice([-1, 1] if shape[dim] > 1 else [1])
    changed = with_shape(checkpoint, name, tuple(shape))
    return changed, (("LS401",), name, math.prod(shape))


MUTATIONS: dict[str, Mutation] = {
    "deleted": delete,
    "renamed": rename,
    "dtype": change_dtype,
    "shape": change_shape,
}
