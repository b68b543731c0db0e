"""What a load is about, as its first event says it."""

from collections.abc import Mapping
from typing import Any

from loadscope.app.roles import Role
from loadscope.app.settings import Settings
from loadscope.loader.checkpoint import Checkpoint


def describe_start(
    settings: Settings,
    role: Role,
    label: str,
    checkpoint: Checkpoint | None,
    store: Mapping[str, Any],
) -> dict[str, Any]:
    """`checkpoint` is None if there is none. The path itself stays out: events are served.

    `store` is the state of the parameters that the load will write over.
    """
    config = (checkpoint.config if checkpoint is not None else None) or {}
    return {
        "model": config.get("model_type"),
        "source": label,
        "roles": [role],
        "layout": settings.layout.as_json(),
        "device": settings.device,
        "paced": settings.pace_s is not None,
        "store": {"state": store["state"], "epoch": store["epoch"]},
    }
