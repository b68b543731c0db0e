"""What decides a family's tables beside the model itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choices:
    """`tie_head`: the head is the embedding itself. `fuse_indexer`: wk and weights_proj are one
    matrix. `fuse_shared_experts`: the shared expert is the last of the stacked experts."""

    has_kv_scales: bool = False
    fuse_indexer: bool = False
    tie_head: bool = False
    fuse_shared_experts: bool = False
