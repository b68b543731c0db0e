"""Recorded header packs that several test files share, opened when they are first asked for."""

import gzip
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from loadscope.loader.checkpoint import Checkpoint, open_checkpoint

HEADERS = Path(__file__).parent / "data" / "headers"
# the same examples on every machine: a red build is repeatable
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")

PACKS = (
    "deepseek-v3",
    "deepseek-v3.1",
    "deepseek-v3.2-exp",
    "deepseek-v2-lite",
    "kimi-k2-instruct",
    "glm-5",
    "deepseek-r1-0528-fp4",
    "deepseek-r1-awq",
    "deepseek-r1-w4afp8",
    "deepseek-r1-int8-block",
    "deepseek-r1-int8-channel",
)


def pack_path(name: str) -> Path:
    return HEADERS / f"{name}.headers.json.gz"


@lru_cache(maxsize=2)  # an open pack takes 70 MB; tests go through them one after another
def open_pack(name: str) -> Checkpoint:
    """A recorded pack; tests change copies."""
    return open_checkpoint(pack_path(name))


@pytest.fixture(scope="session")
def v3_pack_document() -> dict[str, Any]:
    """The V3 pack as it stands in its file, read without the loader."""
    return json.loads(gzip.decompress(pack_path("deepseek-v3").read_bytes()))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For tiny tensors: threads would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
