"""How long one conversion took."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One conversion: its name, what it worked on, bytes read and written, seconds."""

    kernel: str
    param: str
    shape: tuple[int, ...]
    nbytes: int
    seconds: float
