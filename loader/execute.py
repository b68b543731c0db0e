"""Run a plan on some ranks, one after another. The one place whose loop emits a load's events."""

from collections.abc import Mapping
from pathlib import Path

import torch

from loadscope.loader.checkpoint import Checkpoint
from loadscope.loader.control import Cancelled, Control, LoadError
from loadscope.loader.events import Emit
from loadscope.loader.findings import Finding
from loadscope.loader.outcomes import outcome, routed
from loadscope.loader.parameters import ParameterStore, state_of
from loadscope.loader.plan import Plan
from loadscope.loader.rank_load import RankLoad, ReaderFactory
from loadscope.loader.read import Reader, ThreadedReader
from loadscope.loader.steps import cell_numbers
from loadscope.loader.summary import describe_load, global_skip_detail, rank_skip_detail
from loadscope.loader.writing import WHOLE, Writing

MAX_TOUCHED_NAMES = 20


def open_reader(folder: Path, names: list[str], device: torch.device) -> Reader:
    return ThreadedReader(folder, names, pinned=device.type == "cuda")


def run_load(
    plan: Plan,
    checkpoint: Checkpoint,
    stores: Mapping[int, ParameterStore],
    emit: Emit,
    control: Control | None = None,
    make_reader: ReaderFactory = open_reader,
    writing: Writing = WHOLE,
) -> None:
    """Load the ranks of `stores` one after another. Never raises for a failed load.

    A refused plan touches nothing. After a failure the events name tensor, file and rule; a store
    that had been written to is `poisoned` and lists the touched parameters; so are the other ranks
    then, for together they hold a mixture.
    """
    control = control if control is not None else Control()
    detail = describe_load(plan, list(stores), writing)
    emit("plan_made", detail=detail)
    if plan.verdict != "pass" or plan.kind == "pack":
        _refuse(plan, stores, emit)
        return
    _emit_names(plan, stores, emit, writing)
    cells = cell_numbers(plan, detail["grid"])
    done: list[int] = []
    remarks: list[Finding] = []
    for rank, store in stores.items():
        run = RankLoad(plan, store, emit, control, cells, writing)
        try:
            run.load(checkpoint.directory, make_reader)
        except LoadError as error:
            _mark_mixture(rank, done, stores)
            _fail(error, rank, stores, emit, cells)
            return
        done.append(rank)
        remarks += run.remarks
    detail = {
        "status": "finished",
        "store": state_of(stores),
        "findings": [remark.as_json() for remark in remarks],
    }
    emit("load_finished", detail=detail)


def _refuse(plan: Plan, stores: Mapping[int, ParameterStore], emit: Emit) -> None:
    errors = [f for f in plan.findings if f.level == "error"]
    reason = errors[0].message if errors else f"{plan.label} holds headers only: nothing to load"
    emit(
        "load_finished",
        reason=reason,
        detail={"status": "refused", "store": state_of(stores)},
    )


def _emit_names(
    plan: Plan, stores: Mapping[int, ParameterStore], emit: Emit, writing: Writing
) -> None:
    """What becomes of every name: of all as bulk records, of some files tensor by tensor."""
    if writing.files is None:
        _emit_bulk(plan, stores, emit)
    else:
        _emit_some(plan, emit, writing.files)


def _emit_some(plan: Plan, emit: Emit, files: frozenset[int]) -> None:
    left = {"count": 0, "bytes": 0}
    for name, tensor in plan.tensors.items():
        place = plan.find(name)
        assert place is not None
        tail, layer = place
        if tensor.file not in files:
            left["count"] += 1
            left["bytes"] += tensor.stop - tensor.start
        elif (what := outcome(plan, tail, layer))[0] == "skipped":
            emit("skipped", tensor=name, reason=what[1], bytes=tensor.stop - tensor.start)
        elif tail.source is not None and (target := plan.sources[tail.source].target) is not None:
            source, param = plan.sources[tail.source], plan.targets[target]
            emit("renamed", tensor=name, param=param.full_name(layer), rule=source.rule)
    if left["count"]:
        # one record: which they are, the plan and the files tell
        emit("skipped", reason="not_requested", detail={"reasons": {"not_requested": left}})


def _emit_bulk(plan: Plan, stores: Mapping[int, ParameterStore], emit: Emit) -> None:
    """One record for all renames and one per rank for what it skips: an event per tensor each."""
    renamed = sum(tail.routed.bit_count() for tail, _source, _target in routed(plan))
    if renamed:
        emit("renamed", span=renamed, detail={"digest": plan.digest})
    count, detail = global_skip_detail(plan)
    if count:
        emit("skipped", span=count, detail=detail)
    for rank in stores:
        count, detail = rank_skip_detail(plan, rank)
        if count:
            emit("skipped", rank, span=count, detail=detail)


def _mark_mixture(failed: int, done: list[int], stores: Mapping[int, ParameterStore]) -> None:
    """Once a byte was written the ranks hold different weights: none of them may be read."""
    if not done and not stores[failed].touched:
        return
    for rank, store in stores.items():
        if store.state == "ready":
            store.mix(list(store.parameters) if rank in done else [])


def _fail(
    error: LoadError,
    rank: int,
    stores: Mapping[int, ParameterStore],
    emit: Emit,
    cells: Mapping[str, int],
) -> None:
    touched = [name for store in stores.values() for name in store.touched]
    emit(
        "failed",
        rank,
        tensor=error.tensor,
        param=error.param,
        rule=error.rule,
        reason=str(error),
        detail={
            "file": error.file,
            "cell": cells.get(str(error.param)),
            "touched": len(touched),
            "touched_names": touched[:MAX_TOUCHED_NAMES],
            "fix": "reload a good checkpoint: touched parameters hold a mixture"
            if touched
            else "correct the cause and reload: no parameter was touched",
        },
    )
    status = "interrupted" if isinstance(error, Cancelled) else "failed"
    emit("load_finished", detail={"status": status, "store": state_of(stores)})
