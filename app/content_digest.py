"""A Content-Digest header to a check of the body that comes with it (RFC 9530).

    Content-Digest: sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:, xxh3-128=:…:

`xxh3-128` is an extension: the 16 bytes of XXH3, most significant first, as xxhsum prints them.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Protocol

import xxhash

EXAMPLE = "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"
MAX_HEADER_CHARACTERS = 4096
_KEY = r"[a-z*][a-z0-9_\-.*]*"
_PARAMETER = rf'; *{_KEY}(?:=(?:"[^"\\]*"|[^ ,;"]+))?'
_MEMBER = re.compile(rf"({_KEY})=:([A-Za-z0-9+/]*={{0,2}}):(?:{_PARAMETER})*")
_COMMA = re.compile(r"[ \t]*,[ \t]*")


class Hash(Protocol):
    @property
    def digest_size(self) -> int: ...
    def update(self, chunk: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


# quickest first: a sender that gives several is checked by one, and all find what broke on the way
ALGORITHMS: dict[str, Callable[[], Hash]] = {
    "xxh3-128": xxhash.xxh3_128,
    "sha-256": hashlib.sha256,
    "sha-512": hashlib.sha512,
}


class DigestError(ValueError):
    """The header cannot be used; the message is a sentence for the sender."""


class DigestMismatch(ValueError):
    """The body has another digest; `expected` and `got` are as the header writes them."""

    def __init__(self, algorithm: str, expected: str, got: str) -> None:
        super().__init__(f"expected {algorithm} {expected} by Content-Digest, got {got}")
        self.algorithm, self.expected, self.got = algorithm, expected, got


class ContentDigest:
    """What the sender says that the body hashes to; `update` with all of it, then `check`."""

    def __init__(self, algorithm: str, expected: bytes) -> None:
        self.algorithm, self.expected = algorithm, expected
        self._hash = ALGORITHMS[algorithm]()

    def update(self, chunk: bytes) -> None:
        self._hash.update(chunk)

    def check(self) -> None:
        """DigestMismatch unless the chunks so far have the expected digest."""
        got = self._hash.digest()
        if got != self.expected:
            raise DigestMismatch(self.algorithm, _base64(self.expected), _base64(got))

    def __str__(self) -> str:
        return f"{self.algorithm}=:{_base64(self.expected)}:"


def parse_content_digest(header: str | None) -> ContentDigest:
    """The quickest digest of the header that is known here; DigestError if there is none."""
    if header is None or not header.strip():
        raise DigestError(f"found no Content-Digest; send one with the body, such as {EXAMPLE}")
    digests = dict(_members(header))
    for algorithm in ALGORITHMS:
        if algorithm in digests:
            return ContentDigest(algorithm, digests[algorithm])
    found, known = ", ".join(digests), ", ".join(ALGORITHMS)
    raise DigestError(f"found Content-Digest with {found}; expected one of {known}: {EXAMPLE}")


def _members(header: str) -> Iterator[tuple[str, bytes]]:
    """Algorithms and digests in order; of one that comes twice the later one counts."""
    text = header.strip(" \t")
    if len(text) > MAX_HEADER_CHARACTERS:
        raise DigestError(f"found a Content-Digest of {len(text):,} characters; send one digest")
    position = 0
    while True:
        member = _MEMBER.match(text, position)
        if member is None:
            raise _malformed(text[position:])
        yield member[1], _decoded(member[1], member[2])
        if member.end() == len(text):
            return
        comma = _COMMA.match(text, member.end())
        if comma is None:
            raise _malformed(text[member.end() :])
        position = comma.end()


def _decoded(algorithm: str, text: str) -> bytes:
    bare = text.rstrip("=")
    try:
        # a receiver is to accept base64 without its padding
        digest = base64.b64decode(bare + "=" * (-len(bare) % 4))
    except binascii.Error:
        raise _malformed(f"{algorithm}=:{text}:") from None
    if algorithm in ALGORITHMS:
        size = ALGORITHMS[algorithm]().digest_size
        if len(digest) != size:
            raise DigestError(
                f"found {algorithm} of {len(digest)} bytes in Content-Digest; expected {size} "
                f"bytes in base64, such as {EXAMPLE}"
            )
    return digest


def _malformed(rest: str) -> DigestError:
    found = ascii(rest[:60]) if rest else "nothing after a comma"
    return DigestError(f"found {found} in Content-Digest; expected algorithm=:base64:, {EXAMPLE}")


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
