"""What a load is about, as its first event says it."""

from pathlib import Path
from typing import Any, Protocol

from loadscope.app.settings import Settings
from loadscope.loader.checkpoint import Checkpoint


class Before(Protocol):
    """The parameters that the load will write over."""

    @property
    def state(self) -> str: ...
    @property
    def epoch(self) -> int: ...


def describe_start(
    settings: Settings, path: Path, checkpoint: Checkpoint | None, store: Before | None
) -> dict[str, Any]:
    """`checkpoint` is None if the path holds none. The path itself stays out: events are served."""
    config = (checkpoint.config if checkpoint is not None else None) or {}
    return {
        "model": config.get("model_type"),
        "source": path.name,
        "roles": ["target"],
        "layout": settings.layout.as_json(),
        "device": settings.device,
        "paced": settings.pace_s is not None,
        "store": {
            "state": store.state if store is not None else "empty",
            "epoch": store.epoch if store is not None else 0,
        },
    }
