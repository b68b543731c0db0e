"""What an update is asked to do, whatever door the order came through."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from loadscope.app.settings import Origin
from loadscope.loader.checkpoint import Checkpoint
from loadscope.loader.checksums import Manifest
from loadscope.loader.keeper import Wanted

SourceType = Literal["disk", "upload"]
Scope = Literal["full", "partial"]
Level = Literal["none", "headers", "bytes", "loaded"]


@dataclass(frozen=True, slots=True)
class Verify:
    """`bytes`: every byte is read and hashed before the first copy; `loaded`: and read back after.

    `manifest` is the sender's list of checksums to compare with.
    """

    level: Level = "bytes"
    algorithm: str = "xxh3-128"
    manifest: Manifest | None = None

    @property
    def reads_bytes(self) -> bool:
        return self.level in ("bytes", "loaded") or self.manifest is not None


@dataclass(frozen=True, slots=True)
class Asked:
    """`ignore`: globs of names outside the plan that may come; None takes any, as a start does."""

    origin: Origin
    source: SourceType
    path: Path | None = None
    checkpoint: Checkpoint | None = None
    label: str | None = None
    version: str | None = None
    force: bool = False
    expect_current: str | None = None
    scope: Scope = "full"
    ignore: tuple[str, ...] | None = None
    atomic: Wanted = "prefer"
    rollback: Literal["auto", "manual", "none"] = "auto"
    verify: Verify = field(default_factory=Verify)
    retain_previous: bool = True
    stats: Literal["none", "summary", "full"] = "summary"
    deadline_s: float | None = None
    quiesce: str = "none"
