"""A checkpoint whose draft layer lies in a shard of its own, to be damaged apart."""

from pathlib import Path

from support.golden_checkpoint import VARIANTS, golden_specs, tensor_bytes
from support.safetensors_files import write_checkpoint

VARIANT = "v3-fp8-block"
TARGET_SHARD, DRAFT_SHARD = "target.safetensors", "draft.safetensors"
DRAFT_LAYER = "model.layers.3."


def write_two_roles(folder: Path, *, has_draft: bool = True) -> Path:
    """The golden checkpoint in two shards; without a draft its config still announces one."""
    specs = golden_specs(VARIANT)
    shards = {
        TARGET_SHARD: [spec for spec in specs if not spec.name.startswith(DRAFT_LAYER)],
        DRAFT_SHARD: [spec for spec in specs if spec.name.startswith(DRAFT_LAYER)],
    }
    if not has_draft:
        del shards[DRAFT_SHARD]
    return write_checkpoint(folder, VARIANTS[VARIANT], shards, tensor_bytes)
