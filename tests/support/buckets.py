"""Buckets of an upload, and the digests that come with them."""

import base64
import hashlib
import json

import xxhash

from loadscope.app.content_digest import ContentDigest, parse_content_digest


def bucket(fill: int = 0, nbytes: int = 64, name: str = "model.norm.weight") -> bytes:
    """A safetensors file with one tensor of bytes."""
    entry = {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}
    header = json.dumps({name: entry}).encode()
    return len(header).to_bytes(8, "little") + header + bytes([fill]) * nbytes


def sha256(body: bytes) -> ContentDigest:
    text = base64.b64encode(hashlib.sha256(body).digest()).decode()
    return parse_content_digest(f"sha-256=:{text}:")


def xxh3(body: bytes) -> ContentDigest:
    text = base64.b64encode(xxhash.xxh3_128_digest(body)).decode()
    return parse_content_digest(f"xxh3-128=:{text}:")
