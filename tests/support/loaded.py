"""Loads checkpoints in this process, rank by rank, and gives what came out."""

from pathlib import Path
from typing import Any

from torch import Tensor

from loadscope.loader.checkpoint import open_checkpoint
from loadscope.loader.execute import open_reader, run_load
from loadscope.loader.fingerprints import fingerprint
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Options, Plan, make_plan
from loadscope.loader.rank_load import ReaderFactory
from loadscope.loader.topology import Layout

POISON = 0xA5


def plan_of(folder: Path, layout: Layout, options: Options | None = None) -> Plan:
    return make_plan(open_checkpoint(folder), layout, options)


def load_ranks(
    folder: Path,
    layout: Layout,
    make_reader: ReaderFactory = open_reader,
    options: Options | None = None,
) -> list[dict[str, Tensor]]:
    """Parameters and derived tensors of every rank, by name."""
    plan = plan_of(folder, layout, options)
    stores = [load_rank(plan, folder, rank, make_reader) for rank in range(layout.world)]
    return [{**store.parameters, **store.derived} for store in stores]


def load_rank(
    plan: Plan, folder: Path, rank: int, make_reader: ReaderFactory = open_reader
) -> ParameterStore:
    """One rank over memory that is not zero to begin with; a load that does not finish raises."""
    store = ParameterStore(plan, rank)
    store.fill_pattern(POISON)
    store.reset_initial()
    ends: list[dict[str, Any]] = []

    def emit(kind: str, rank: int | None = None, **facts: Any) -> None:
        if kind in ("failed", "load_finished"):
            ends.append({"kind": kind, **facts})

    run_load(plan, open_checkpoint(folder), {rank: store}, emit, make_reader=make_reader)
    assert store.state == "ready", ends
    return store


def fingerprints_of(
    folder: Path,
    layout: Layout,
    rank: int,
    make_reader: ReaderFactory = open_reader,
    options: Options | None = None,
) -> dict[str, Any]:
    """The document of `loadscope load --fingerprints` for one rank."""
    plan = plan_of(folder, layout, options)
    store = ParameterStore(plan, rank)
    return fingerprint(plan, open_checkpoint(folder), store, make_reader=make_reader)
