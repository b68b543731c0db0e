"""The folders that a reload may read from, and the path a request may name inside them."""

from collections.abc import Sequence
from pathlib import Path


class OutsideRoots(PermissionError):
    """The path leads out of the roots; the message names roots by their last part only."""


class Roots:
    """Allowed folders. Links are followed before the comparison, so none leads out."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folder.resolve() for folder in folders)

    @property
    def names(self) -> list[str]:
        return [folder.name for folder in self._folders]

    def resolve(self, text: str, *, may_be_new: bool = False) -> Path:
        """The path inside a root: absolute, below a root, or beginning with a root's own name.

        `may_be_new`: only the folder that it lies in has to be there.
        """
        for candidate in self._candidates(Path(text)):
            path = candidate.resolve()
            is_there = path.exists() or (may_be_new and path.parent.is_dir())
            if is_there and any(path.is_relative_to(folder) for folder in self._folders):
                return path
        inside = ", ".join(self.names) or "none (start with --root DIR)"
        raise OutsideRoots(f"no such path inside the roots; roots: {inside}")

    def _candidates(self, path: Path) -> list[Path]:
        if path.is_absolute():
            return [path]
        below = [folder / path for folder in self._folders]
        beside = [f.parent / path for f in self._folders if path.parts[:1] == (f.name,)]
        return below + beside
