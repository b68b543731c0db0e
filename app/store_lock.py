"""Who writes here: file locks that end with the process that holds them, however it ends."""

import fcntl
import os
import secrets
from pathlib import Path


class FileLock:
    """An exclusive lock on a file, held until `release` or the end of the process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor

    @classmethod
    def take(cls, path: Path) -> "FileLock | None":
        """The lock, or None when another holder has it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return cls(path, descriptor)

    def release(self) -> None:
        os.close(self._descriptor)

    def remove(self) -> None:
        """Release for ever: only for a name that nobody takes again."""
        self.path.unlink(missing_ok=True)
        self.release()


class Writers:
    """Tells loads that somebody is still writing from loads whose process is gone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # a name that no process ever had: process ids come round again
        self.name = secrets.token_hex(8)
        lock = FileLock.take(self._path(self.name))
        assert lock is not None, f"{self.name} is taken"
        self._lock = lock

    def _path(self, name: str) -> Path:
        return self._directory / f"writer-{name}.lock"

    def is_alive(self, name: str) -> bool:
        if name == self.name:
            return True
        path = self._path(name)
        if not path.exists():
            return False
        lock = FileLock.take(path)
        if lock is None:
            return True
        lock.remove()
        return False

    def close(self) -> None:
        self._lock.remove()


def lock_server(directory: Path) -> FileLock | None:
    """The lock that one server per state directory holds."""
    return FileLock.take(directory / "server.lock")
