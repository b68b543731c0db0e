"""Tensors to buckets: safetensors files of bounded size, hashed while they are packed."""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import torch

from loadscope.loader.checksums import checksum, hasher
from loadscope.loader.dtypes import ITEM_BYTES, TAGS

Weights = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]
Algorithm = Literal["xxh3-128", "sha256"]
BLOCK_BYTES = 1 << 20
# names of the algorithms in a Content-Digest header
DIGESTS: Mapping[Algorithm, str] = {"xxh3-128": "xxh3-128", "sha256": "sha-256"}


class Piece(NamedTuple):
    """One tensor: a copy of its row-major bytes, `tag` its dtype as safetensors names it."""

    name: str
    tag: str
    shape: tuple[int, ...]
    data: bytes


class Bucket:
    """One safetensors file. `checksums` by tensor and the header `digest` are of what is sent.

    The file is never in one piece: `blocks` gives its `nbytes` in order, as often as asked.
    """

    def __init__(self, pieces: Sequence[Piece], algorithm: Algorithm) -> None:
        # wide elements first, behind a header of whole words: then every tensor is aligned
        self._pieces = sorted(pieces, key=lambda piece: -ITEM_BYTES[piece.tag])
        self._header = _header(self._pieces)
        whole = hasher(algorithm)
        whole.update(self._header)
        self.checksums: dict[str, str] = {}
        for piece in self._pieces:
            whole.update(piece.data)
            self.checksums[piece.name] = checksum(piece.data, algorithm)
        text = base64.b64encode(bytes.fromhex(whole.hexdigest())).decode()
        self.digest = f"{DIGESTS[algorithm]}=:{text}:"
        self.nbytes = len(self._header) + sum(len(piece.data) for piece in self._pieces)

    def blocks(self) -> Iterator[bytes]:
        """Small tensors joined and large ones cut: a block has one to two MiB, the last less."""
        waiting = bytearray(self._header)
        for piece in self._pieces:
            for begin in range(0, len(piece.data), BLOCK_BYTES):
                waiting += piece.data[begin : begin + BLOCK_BYTES]
                if len(waiting) >= BLOCK_BYTES:
                    yield bytes(waiting)
                    waiting.clear()
        if waiting:
            yield bytes(waiting)


def pack(weights: Weights, bucket_bytes: int, algorithm: Algorithm) -> Iterator[Bucket]:
    """Buckets of at most so many bytes of tensors; a larger tensor has one to itself.

    Each tensor is copied when it comes, so its memory may be used again. Only one bucket is held:
    let go of the last one before the next is asked for.
    """
    held: list[Piece] = []
    nbytes = 0
    pairs = weights.items() if isinstance(weights, Mapping) else weights
    for name, tensor in pairs:
        if held and nbytes + tensor.nbytes > bucket_bytes:
            yield Bucket(held, algorithm)
            held, nbytes = [], 0
        held.append(_copied(name, tensor))
        nbytes += tensor.nbytes
    if held:
        yield Bucket(held, algorithm)


def _copied(name: str, tensor: torch.Tensor) -> Piece:
    """Contiguous and on the host, whatever device and strides the tensor has."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in TAGS:
        raise ValueError(f"{name}: found dtype {dtype}; expected one of {', '.join(TAGS)}")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    # not copied by torch: its threads would go on to wait busily for more, on the server's cores
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return Piece(name, TAGS[dtype], tuple(tensor.shape), data)


def _header(pieces: Sequence[Piece]) -> bytes:
    """Length, entries in the order of the bytes, spaces up to a whole word."""
    entries: dict[str, object] = {}
    end = 0
    for name, tag, shape, data in pieces:
        begin, end = end, end + len(data)
        entries[name] = {"dtype": tag, "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
