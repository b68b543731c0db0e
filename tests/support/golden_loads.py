"""Loads the golden checkpoints as the records say, each record's rank alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from support.golden_checkpoint import write_golden_checkpoint
from support.golden_configs import VARIANTS
from support.golden_records import Record, layout_of, options_of, rank_of, variant_of
from support.loaded import fingerprints_of, plan_of


def write_all(root: Path) -> dict[str, Path]:
    """The folder of every variant."""
    return {variant: write_golden_checkpoint(variant, root / variant) for variant in VARIANTS}


def load_record(record: Record, folders: dict[str, Path]) -> dict[str, Any]:
    """Fingerprints, or nothing but the findings of a plan that was refused."""
    folder, options = folders[variant_of(record)], options_of(record)
    plan = plan_of(folder, layout_of(record), options)
    if plan.verdict == "fail":
        return {"refused": True, "findings": [found.as_json() for found in plan.findings]}
    with _one_thread():
        found = fingerprints_of(folder, layout_of(record), rank_of(record), options=options)
    return {"refused": False, **found}


@contextmanager
def _one_thread() -> Iterator[None]:
    """The tensors are tiny: threads would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
