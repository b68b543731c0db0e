"""What every benchmark prints: where it ran, with what, and one table."""

import os
import platform
import statistics
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path


def machine() -> str:
    """Processor, cores and versions, for the line above a table."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = {line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")}
    name = names.pop() if names else platform.processor() or platform.machine()
    return (
        f"{date.today().isoformat()}, {os.cpu_count()} cores {name}, "
        f"Python {platform.python_version()}, torch {version('torch')}"
    )


def show(title: str, command: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A Markdown table, ready to be kept in benchmarks/results."""
    print(f"## {title}\n\n`{command}` — {machine()}\n")
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def spread(values: Sequence[float], unit: str = "s", digits: int = 3) -> str:
    """Median with the lowest and highest value."""
    middle = statistics.median(values)
    return f"{middle:.{digits}f} {unit} ({min(values):.{digits}f} to {max(values):.{digits}f})"
