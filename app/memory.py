"""The device that parameters live on, and how much memory new ones may take."""

from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")


def check_device(device: str) -> None:
    """ValueError for a device that this machine, or this build of torch, does not have."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here; use --device cpu")


def available_bytes(device: str, meminfo: Path = MEMINFO) -> int | None:
    """Bytes free for parameters on the device; None where the machine does not tell."""
    return torch.cuda.mem_get_info()[0] if device == "cuda" else _host_bytes(meminfo)


def _host_bytes(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None
