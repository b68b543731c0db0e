"""Rotary embedding in plain torch."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def rotate(x: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Interleaved rotary embedding: dims (0, 1), (2, 3), … turn as pairs, by the position."""
    length, width = x.shape[-2:]
    theta = _rope_theta(config)
    frequencies = theta ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = (even * angles.cos() - odd * angles.sin(), odd * angles.cos() + even * angles.sin())
    return torch.stack(turned, dim=-1).flatten(-2)


def _rope_theta(config: Mapping[str, Any]) -> float:
    rope = config.get("rope_parameters")
    return config["rope_theta"] if rope is None else rope["rope_theta"]
