"""Panels: pure functions from the live snapshot to what one template shows."""

from collections.abc import Callable, Mapping

from loadscope.app.panels import (
    coverage,
    findings,
    kernels,
    pairs,
    progress,
    ranks,
    skips,
    verdict,
)
from loadscope.app.panels.snapshot import Snapshot, whole

PANELS: Mapping[str, Callable[[Snapshot], object]] = {
    "verdict": verdict.view,
    "progress": progress.view,
    "coverage": coverage.view,
    "kernels": kernels.view,
    "skips": skips.view,
    "pairs": pairs.view,
    "ranks": ranks.view,
    "findings": findings.view,
}


def views(live: Snapshot) -> dict[str, object]:
    """What each panel's template sees, by the panel's name."""
    shown = whole(live)
    return {name: view(shown) for name, view in PANELS.items()}
