"""Fixtures that several test files share: recorded header packs and their checkpoints."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from loadscope.loader.checkpoint import Checkpoint, open_checkpoint

HEADERS = Path(__file__).parent / "data" / "headers"
# the same examples on every machine: a red build is repeatable
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")

PACKS = ("deepseek-v3", "deepseek-v3.2-exp", "deepseek-v2-lite")


def pack_path(name: str) -> Path:
    return HEADERS / f"{name}.headers.json.gz"


@pytest.fixture(scope="session")
def packs() -> dict[str, Checkpoint]:
    """The recorded packs, opened once; tests change copies."""
    return {name: open_checkpoint(pack_path(name)) for name in PACKS}


@pytest.fixture(scope="session")
def v3_pack_document() -> dict[str, Any]:
    """The V3 pack as it stands in its file, read without the loader."""
    return json.loads(gzip.decompress(pack_path("deepseek-v3").read_bytes()))
