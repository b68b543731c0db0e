"""Tensor conversions: each with its plain-torch reference; importable without triton."""
