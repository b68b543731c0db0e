"""Command-line options that several commands share, and their values turned into types."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from loadscope.app.rank_choice import parse_ranks
from loadscope.app.roles import Role, parse_roles
from loadscope.app.settings import Settings, make_settings
from loadscope.loader.checkpoint import Checkpoint, NotACheckpoint, open_checkpoint
from loadscope.loader.topology import Layout

USAGE = 2
MODEL_HELP = "checkpoint directory, one .safetensors file, or a *.headers.json.gz pack"


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


Model = Annotated[Path, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
OptionalModel = Annotated[
    Path | None, typer.Argument(metavar="[MODEL]", help="what to load; none: wait for POST /reload")
]
Json = Annotated[bool, typer.Option("--json", help="one JSON document on stdout")]
Host = Annotated[
    str | None, typer.Option("--host", help="address to listen on", show_default="127.0.0.1")
]
Port = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help="0 picks a free one", show_default="8787"),
]
DeviceOption = Annotated[
    Device | None, typer.Option("--device", help="where parameters live", show_default="cpu")
]
Roles = Annotated[
    str | None,
    typer.Option(
        "--roles", metavar="ROLES", help="target, draft or target,draft", show_default="target"
    ),
]
StateDir = Annotated[
    Path | None,
    typer.Option("--state-dir", help="folder of the load history, on a local disk (not NFS)"),
]


def refuse(message: str) -> NoReturn:
    """End with the code for wrong usage and one line that says what to do."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(USAGE)


def writable_or_refuse(path: Path | None) -> Path | None:
    """A file to write later; refused now rather than after a long load."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        refuse(f"{path}: not a file in an existing folder")
    return path


def open_or_refuse(model: Path) -> Checkpoint:
    try:
        return open_checkpoint(model)
    except NotACheckpoint as error:
        refuse(str(error))


def roles_or_refuse(roles: str | None, *, draft: bool) -> tuple[Role, ...]:
    """What `--roles` names; `--draft` is the short form of the draft alone."""
    if roles is None:
        return ("draft",) if draft else ("target",)
    try:
        found = parse_roles(roles)
    except ValueError as error:
        refuse(f"--roles: {error}")
    if draft and found != ("draft",):
        refuse(f"--draft is the draft alone: use --roles {roles} without it, or --draft alone")
    return found


def ranks_or_refuse(ranks: str | None, layout: Layout) -> str | None:
    try:
        if ranks is not None:
            parse_ranks(ranks, layout.world)
    except ValueError as error:
        refuse(f"--ranks: {error}")
    return ranks


def roots_or_refuse(roots: list[Path] | None, model: Path | None) -> tuple[Path, ...]:
    """The given folders, else the model itself; a server with neither could load nothing."""
    for root in roots or ():
        if not root.is_dir():
            refuse(f"--root {root}: no such folder")
    if not roots and model is None:
        refuse("nothing to load: name a MODEL, or folders to reload from with --root DIR")
    return tuple(roots or ()) if roots or model is None else (model,)


def settings_or_refuse(**given: Any) -> Settings:
    try:
        return make_settings(**given)
    except ValueError as error:
        refuse(str(error))
