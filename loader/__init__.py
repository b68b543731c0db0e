"""Checkpoint to parameters: planned, proven, executed; knows nothing of the web."""
