"""Command-line options that several commands share, and their values turned into types."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import SecretStr

from loadscope.app.rank_choice import parse_ranks
from loadscope.app.roles import Role, parse_roles
from loadscope.app.settings import Settings, make_settings
from loadscope.loader.checkpoint import Checkpoint, NotACheckpoint, open_checkpoint
from loadscope.loader.topology import Layout

USAGE = 2
MAX_KEY_FILE_BYTES = 4096
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([kmgt]?)(i?)b?", re.IGNORECASE)
POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
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
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        metavar="FILE",
        help="file with the key that changes need, and reads too where others can reach --host; "
        "or set LOADSCOPE_API_KEY",
    ),
]
SpoolDir = Annotated[
    Path | None,
    typer.Option(
        "--spool-dir",
        metavar="DIR",
        help="where buckets of an update wait; a tmpfs such as /dev/shm keeps them in memory",
        show_default="in the state directory",
    ),
]
MemoryBudget = Annotated[
    str | None,
    typer.Option(
        "--memory-budget",
        metavar="SIZE",
        help="what second copies, undo logs and held tensors may take together, such as 8GiB",
        show_default="what is free",
    ),
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


def api_key_or_refuse(path: Path | None) -> SecretStr | None:
    """The one line of a key file."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            text = file.read(MAX_KEY_FILE_BYTES).decode().strip()
    except UnicodeDecodeError:
        refuse(f"--api-key-file {path}: expected one line of text")
    except OSError as error:
        refuse(f"--api-key-file {path}: {error.strerror}")
    return SecretStr(text)


def spool_dir_or_refuse(path: Path | None) -> Path | None:
    if path is not None and not path.is_dir():
        refuse(f"--spool-dir {path}: no such folder")
    return path


def size_or_refuse(name: str, text: str | None) -> int | None:
    try:
        return None if text is None else parse_size(text)
    except ValueError as error:
        refuse(f"{name}: {error}")


def parse_size(text: str) -> int:
    """Bytes, or `8GiB`, `1.5 TB`, `500M`: powers of 1024 with an i, of 1000 without."""
    found = SIZE.fullmatch(text.strip())
    nbytes = 0
    if found is not None:
        base = 1024 if found[3] else 1000
        nbytes = int(float(found[1]) * base ** POWERS[found[2].lower()])
    if nbytes < 1:
        raise ValueError(f"found {text!r}; expected a size such as 8GiB, 500MB or 1073741824")
    return nbytes


def settings_or_refuse(**given: Any) -> Settings:
    try:
        return make_settings(**given)
    except ValueError as error:
        refuse(str(error))
