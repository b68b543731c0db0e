"""What the examples of docs/differences.md are made of: tiny checkpoints, plans and loads of them.

The checkpoints are the golden ones: 3 layers and the draft layer, 8 experts, 4 heads, hidden 256.
"""

import struct
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from loadscope.loader.checkpoint import Checkpoint, open_checkpoint
from loadscope.loader.fingerprints import fingerprint
from loadscope.loader.parameters import ParameterStore, torch_dtype
from loadscope.loader.plan import Options, Plan, make_plan
from loadscope.loader.topology import Layout
from support.golden_checkpoint import VARIANTS, tensor_bytes
from support.in_memory import in_memory
from support.linear_specs import Spec
from support.safetensors_files import write_checkpoint

WHOLE = Layout()


def tiny(variant: str, **config: Any) -> Checkpoint:
    """Headers of a golden checkpoint, without files."""
    return in_memory({**VARIANTS[variant], **config})


def edit(
    checkpoint: Checkpoint,
    drop: Collection[str] = (),
    add: Mapping[str, tuple[str, tuple[int, ...]]] | None = None,
    **config: Any,
) -> Checkpoint:
    """A copy without some tensors, with others (dtype and shape by name), other config fields."""
    tensors = {name: t for name, t in checkpoint.tensors.items() if name not in drop}
    like = next(iter(checkpoint.tensors.values()))
    for name, (dtype, shape) in (add or {}).items():
        tensors[name] = like._replace(dtype=dtype, shape=shape)
    return replace(checkpoint, tensors=tensors, config={**(checkpoint.config or {}), **config})


def requantised(checkpoint: Checkpoint, **fields: Any) -> Checkpoint:
    """A copy whose quantization_config has other fields."""
    assert checkpoint.config is not None
    entry = {**checkpoint.config["quantization_config"], **fields}
    return edit(checkpoint, quantization_config=entry)


def say(
    checkpoint: Checkpoint,
    layout: Layout = WHOLE,
    codes: Collection[str] | None = None,
    **options: Any,
) -> None:
    """Print a plan's errors and warnings (of some codes, notes too), then its verdict."""
    plan = make_plan(checkpoint, layout, Options(**options))
    for found in plan.findings:
        if found.level != "note" if codes is None else found.code in codes:
            _show(found.level, found.code, found.message.partition("; nearest")[0])
    _show(plan.verdict)


def plan_of(checkpoint: Checkpoint, layout: Layout = WHOLE, **options: Any) -> Plan:
    return make_plan(checkpoint, layout, Options(**options))


def load(
    checkpoint: Checkpoint,
    layout: Layout = WHOLE,
    rank: int = 0,
    values: Mapping[str, bytes] | None = None,
    store: ParameterStore | None = None,
    **options: Any,
) -> ParameterStore:
    """Write the checkpoint, load one rank of it, print what only the values could show.

    Bytes are a function of the name, except for those given; a `store` is loaded once more.
    """
    given = values or {}
    specs = [Spec(n, t.dtype, t.shape, "scale" in n) for n, t in checkpoint.tensors.items()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        write_checkpoint(
            path,
            checkpoint.config or {},
            {"model.safetensors": specs},
            lambda spec: given.get(spec.name) or tensor_bytes(spec),
        )
        written = open_checkpoint(path)
        plan = make_plan(written, layout, Options(**options))
        store = store if store is not None else ParameterStore(plan, rank)
        told = fingerprint(plan, written, store)["findings"]
    for found in told:
        if found["code"].startswith("LS6"):
            _show(found["level"], found["code"], found["message"])
    return store


def stored(checkpoint: Checkpoint, *names: str) -> bytes:
    """The bytes of some tensors, one behind the other."""
    wanted = [(name, *checkpoint.tensors[name][:2]) for name in names]
    return b"".join(tensor_bytes(Spec(n, d, s, "scale" in n)) for n, d, s in wanted)


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a loaded tensor, row by row."""
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def tensor_of(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """The tensor itself, as a trainer would hand it over."""
    raw = torch.frombuffer(bytearray(stored(checkpoint, name)), dtype=torch.uint8)
    dtype, shape = checkpoint.tensors[name][:2]
    return raw.view(torch_dtype(dtype)).view(shape)


def f32(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def _show(*words: str) -> None:
    print(*words)  # noqa: T201  an example is compared with what it prints
