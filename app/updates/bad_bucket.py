"""What a bucket's file holds, or why it is of no use."""

from pathlib import Path

from loadscope.loader.checkpoint import Tensor
from loadscope.loader.faults import Faults
from loadscope.loader.safetensors_header import HeaderReader

# what the file faults of docs/findings.md mean to the sender; the others: invalid_request
CODES_OF_FAULTS = {
    "LS103": "truncated",
    "LS107": "unsupported_format",
    "LS109": "truncated",
    "LS113": "truncated",
}
_LENGTH_BYTES = 8


class BadBucket(Exception):
    """A bucket that cannot be taken; `code` is one of those of docs/http-api.md.

    `expected` and `got`: the digests, if it is they that differ.
    """

    def __init__(
        self,
        code: str,
        number: int,
        found: str,
        expected: str | None = None,
        got: str | None = None,
    ) -> None:
        super().__init__(f"bucket {number}: {found}")
        self.code, self.expected, self.got = code, expected, got


def read_headers(number: int, path: Path) -> dict[str, Tensor]:
    """The tensors of a bucket's file by name; BadBucket if it is no whole safetensors file."""
    _check_kind(number, path)
    faults = Faults()
    read = HeaderReader(faults).read(path, 0)
    for finding in faults.findings():
        # the sender knows numbers, not files
        found = finding.message.removeprefix(f"{path.name}: ")
        raise BadBucket(CODES_OF_FAULTS.get(finding.code, "invalid_request"), number, found)
    assert read is not None, f"{path.name}: unread without a fault"
    return read[1]


def _check_kind(number: int, path: Path) -> None:
    """A file of another kind has its first letters where the length should be."""
    with path.open("rb") as file:
        start = file.read(_LENGTH_BYTES + 1)
    if len(start) > _LENGTH_BYTES and not start.endswith(b"{"):
        found = "found no safetensors header; expected its length in 8 bytes, then JSON"
        raise BadBucket("unsupported_format", number, found)
