"""The bodies of requests that change weights, and what they ask for."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from loadscope.app.problems import Problem
from loadscope.app.roots import OutsideRoots, Roots
from loadscope.app.updates.asked import Asked, Level, Verify
from loadscope.loader.checksums import Manifest, parse_manifest

MAX_MANIFEST_BYTES = 64 * 2**20
Text = Annotated[str, Field(min_length=1, max_length=4096)]
Version = Annotated[str, Field(min_length=1, max_length=200)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


# what each type of source needs, and what else it may have
SOURCE_FIELDS: dict[str, tuple[set[str], set[str]]] = {
    "disk": ({"path"}, {"format"}),
    "upload": (set(), set()),
}


class Source(Strict):
    """Where the weights come from.

    disk: a checkpoint at `path`. upload: buckets, sent with PUT /reloads/{id}/buckets/{n}.
    """

    type: Literal["disk", "upload"]
    path: Text | None = Field(
        default=None,
        description="absolute, below a root, or beginning with a root's own name",
        examples=["DeepSeek-V3"],
    )
    format: Literal["safetensors"] | None = None

    @model_validator(mode="after")
    def _fields_fit_the_type(self) -> Self:
        needed, more = SOURCE_FIELDS[self.type]
        given = {
            name for name in self.model_fields_set - {"type"} if getattr(self, name) is not None
        }
        if missing := sorted(needed - given):
            raise ValueError(f"a source of type {self.type} needs {' and '.join(missing)}")
        if extra := sorted(given - needed - more):
            raise ValueError(f"a source of type {self.type} takes no {' and no '.join(extra)}")
        return self


class VerifyBody(Strict):
    """How the weights are checked: `bytes` hashes all before the first copy, `loaded` also after.

    `checksums` (by name) or `manifest` (a JSON file inside the roots) are the sender's.
    """

    level: Level = "bytes"
    algorithm: Literal["xxh3-128", "sha256"] = "xxh3-128"
    checksums: dict[str, str] | None = None
    overall: str | None = None
    manifest: Text | None = None

    def asked(self, roots: Roots) -> Verify:
        """Problem for a manifest that cannot be read or understood."""
        return Verify(self.level, self.algorithm, self._manifest(roots))

    def _manifest(self, roots: Roots) -> Manifest | None:
        document: Any = None
        if self.checksums is not None:
            document = {"algorithm": self.algorithm, "tensors": self.checksums}
            if self.overall is not None:
                document["overall"] = self.overall
        elif self.manifest is not None:
            document = _read_manifest(self.manifest, roots)
        if document is None:
            return None
        try:
            return parse_manifest(document)
        except ValueError as error:
            raise Problem(400, "invalid-request", f"verify: {error}") from None


def _read_manifest(text: str, roots: Roots) -> Any:
    path = inside(roots, text)
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise Problem(413, "too-large", f"{path.name}: a manifest of more than 64 MiB")
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        detail = f"{path.name}: expected a JSON file with checksums by tensor name"
        raise Problem(400, "invalid-request", detail) from None


class Quiesce(Strict):
    """How requests that are under way are treated. No engine is attached here: there are none."""

    mode: Literal["drain", "abort", "retract", "in_place", "none"] = "drain"
    timeout_s: float = Field(default=30.0, ge=0)


class Reload(Strict):
    """Which weights to bring, and how."""

    source: Source
    version: Version | None = Field(
        default=None, description="of the new weights; left out, the update's id"
    )
    force: bool = False
    expect_current: Version | None = None
    scope: Literal["full", "partial"] = "full"
    unknown: str = Field(default="error", pattern=r"^(error|ignore:.+)$", max_length=4096)
    atomic: Literal["require", "prefer", "off"] = "prefer"
    rollback: Literal["auto", "manual", "none"] = "auto"
    dry_run: bool = False
    verify: VerifyBody = VerifyBody()
    quiesce: Quiesce = Quiesce()
    retain_previous: bool = True
    stats: Literal["none", "summary", "full"] = "summary"
    deadline_s: float = Field(default=600.0, gt=0, le=86_400)
    wait_s: float = Field(default=0.0, ge=0, le=3_600)

    def asked(self, roots: Roots) -> Asked:
        """Problem for a path outside the roots, or what cannot go together."""
        source, path, label = self.source, None, None
        if source.path is not None:
            path = inside(roots, source.path)
            label = path.name
        if self.scope == "partial" and self.source.type != "upload":
            raise Problem(
                400, "invalid-request", "scope: partial goes with a source of type upload"
            )
        globs = self.unknown.partition(":")[2]
        return Asked(
            "reload",
            self.source.type,
            path=path,
            label=label,
            version=self.version,
            force=self.force,
            expect_current=self.expect_current,
            scope=self.scope,
            ignore=tuple(glob.strip() for glob in globs.split(",") if glob.strip()),
            atomic=self.atomic,
            rollback=self.rollback,
            verify=self.verify.asked(roots),
            retain_previous=self.retain_previous,
            stats=self.stats,
            deadline_s=self.deadline_s,
            quiesce=self.quiesce.mode,
        )


def inside(roots: Roots, text: str, *, may_be_new: bool = False) -> Path:
    """The path inside the roots; a Problem that names the roots else."""
    try:
        return roots.resolve(text, may_be_new=may_be_new)
    except OutsideRoots as refused:
        raise Problem(403, "path-not-allowed", str(refused), roots=roots.names) from None


class Commit(Strict):
    """`verify` takes the place of what the update was opened with: the sender knows it by now."""

    wait_s: float = Field(default=0.0, ge=0, le=3_600)
    verify: VerifyBody | None = None


class Wait(Strict):
    """No fields: a rollback is done when it answers."""
