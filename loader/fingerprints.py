"""What a load really left behind: shapes, strides, sha256, and how many elements were written.

`written` is measured: the rank is loaded twice over different fill bytes. An element that shows the
first fill after the first load and the second after the second was written by neither.
"""

import hashlib
from math import prod
from typing import Any

import torch

from loadscope.loader.checkpoint import Checkpoint
from loadscope.loader.control import Control
from loadscope.loader.events import Emit, discard
from loadscope.loader.execute import open_reader
from loadscope.loader.outcomes import deliveries, rank_outcome
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Plan
from loadscope.loader.rank_load import RankLoad, ReaderFactory
from loadscope.loader.views import parameters

PATTERNS = (0xA5, 0x5A)


def fingerprint(
    plan: Plan,
    checkpoint: Checkpoint,
    store: ParameterStore,
    *,
    emit: Emit = discard,
    control: Control | None = None,
    make_reader: ReaderFactory = open_reader,
) -> dict[str, Any]:
    """Load the store's rank twice and describe every tensor. The store is ready afterwards.

    Needs one byte per element beside the parameters. Raises LoadError as a load does.
    """
    run = RankLoad(plan, store, emit, control if control is not None else Control(), {})
    initial, store.initial = store.initial, {}
    try:
        written = _measure(run, checkpoint, make_reader)
    finally:
        # an initial value is no write: it is set when the measuring is over
        store.initial = initial
    return {
        "params": _parameters(plan, store, written),
        "derived": {name: _describe(tensor) for name, tensor in sorted(store.derived.items())},
        "scalars": dict(sorted(store.scalars.items())),
        "flags": dict(sorted(store.flags.items())),
        "tensors": _tensors(plan, store.rank),
        "findings": [finding.as_json() for finding in (*plan.findings, *run.remarks)],
    }


def _measure(run: RankLoad, checkpoint: Checkpoint, make_reader: ReaderFactory) -> dict[str, int]:
    """Written elements per parameter; only the first of the two loads is reported."""
    suspects: dict[str, torch.Tensor] = {}
    written: dict[str, int] = {}
    for byte in PATTERNS:
        run.store.fill_pattern(byte)
        run.load(checkpoint.directory, make_reader)
        _compare(run.store, byte, suspects, written)
        run = RankLoad(run.plan, run.store, discard, run.control, {})
    return written


def _compare(
    store: ParameterStore, byte: int, suspects: dict[str, torch.Tensor], written: dict[str, int]
) -> None:
    """Elements that still show the fill after the first load are suspects until the second."""
    for name, tensor in store.parameters.items():
        untouched = _shows(tensor, byte)
        if byte == PATTERNS[0]:
            suspects[name] = untouched
        else:
            lost = int((suspects.pop(name) & untouched).sum())
            written[name] = tensor.numel() - lost


def _shows(tensor: torch.Tensor, byte: int) -> torch.Tensor:
    """Per element whether all its bytes are the fill byte."""
    raw = tensor.reshape(-1).view(torch.uint8).view(tensor.numel(), tensor.element_size())
    return (raw == byte).all(dim=1)


def _parameters(
    plan: Plan, store: ParameterStore, written: dict[str, int]
) -> dict[str, dict[str, Any]]:
    initial = {n for n in store.initial if written[n] == 0}
    for name in initial:
        store.parameters[name].fill_(store.initial[name])
    fills = {view.name: view.fill for view in parameters(plan, store.rank)}
    return {
        name: {
            **_describe(tensor),
            "numel": tensor.numel(),
            "written": written[name],
            "fill": "initial" if name in initial else fills[name].replace("initial", "checkpoint"),
        }
        for name, tensor in sorted(store.parameters.items())
    }


def _describe(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "sha256": sha256(tensor),
    }


def sha256(tensor: torch.Tensor) -> str:
    """Over the row-major contiguous bytes."""
    flat = tensor.detach().contiguous().reshape(-1)
    data = flat.view(torch.uint8).cpu() if prod(tensor.shape) else flat.cpu()
    return hashlib.sha256(data.numpy().data).hexdigest()


def _tensors(plan: Plan, rank: int) -> dict[str, dict[str, Any]]:
    rows = {}
    for name in plan.tensors:
        place = plan.find(name)
        assert place is not None
        what, reason = rank_outcome(plan, *place, plan.seats[rank])
        rows[name] = {
            "outcome": what,
            "reason": reason,
            "destinations": [
                {"param": d.param, "part": d.part, "expert": d.expert}
                for d in deliveries(plan, *place, ranks=(rank,))
            ],
        }
    return rows
