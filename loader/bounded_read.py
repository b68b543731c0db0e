"""Small files to bytes: never more than a cap, and every failure a fault, no exception."""

import os
import stat
from pathlib import Path

from loadscope.loader.faults import Faults


def file_size(path: Path, faults: Faults) -> int | None:
    """Size of a regular, non-empty file; None after a fault."""
    if not path.name.isprintable():
        # not UTF-8, or control characters: such a name can be neither shown nor sent
        faults.add("LS121", path.name, "found a file name that cannot be printed; rename the file")
        return None
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        _add_unreachable(path, error, faults)
        return None
    if not stat.S_ISREG(status.st_mode):
        # a pipe would block for ever when opened
        faults.add("LS121", path.name, "found something that is no file; expected a file")
        return None
    if status.st_size == 0:
        faults.add("LS113", path.name, "found a file of zero bytes; expected content")
        return None
    return status.st_size


def _add_unreachable(path: Path, error: Exception, faults: Faults) -> None:
    if os.path.islink(path):
        faults.add("LS112", path.name, "found a link that points nowhere; expected a file")
    else:
        add_unreadable(path, error, faults)


def add_unreadable(path: Path, error: Exception, faults: Faults) -> None:
    # str(error) would quote the absolute path
    reason = error.strerror if isinstance(error, OSError) else None
    faults.add("LS121", path.name, f"found that it cannot be read: {reason or 'not a usable name'}")


def read_whole(path: Path, cap: int, code: str, faults: Faults) -> bytes | None:
    """The whole file; a file beyond `cap` bytes is the fault `code`."""
    size = file_size(path, faults)
    if size is None:
        return None
    if size > cap:
        faults.add(code, path.name, f"found {size:,} bytes; expected at most {cap:,}")
        return None
    try:
        with path.open("rb") as file:
            return file.read(cap)
    except OSError as error:
        add_unreadable(path, error, faults)
        return None


def is_link_or_file(path: Path) -> bool:
    """Whether the name is taken at all, by whatever; a dangling link counts."""
    return os.path.lexists(path)
