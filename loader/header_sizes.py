"""A dtype tag and a shape to a number of bytes."""

import math

DTYPE_BITS: dict[str, int] = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
MAX_DIMS = 64
MAX_DIM = (1 << 63) - 1


def is_shape(shape: object) -> bool:
    return (
        type(shape) is list
        and len(shape) <= MAX_DIMS
        and all(type(size) is int and 0 <= size <= MAX_DIM for size in shape)
    )


def byte_count(dtype: str, shape: tuple[int, ...]) -> int | None:
    """None where a sub-byte dtype does not fill its last byte."""
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    return None if bits % 8 else bits // 8


class SizeTable(dict[tuple[object, ...], tuple[tuple[int, ...], int | None]]):
    """(dtype, *shape) to the one tuple of that shape and its bytes, computed at first sight."""

    def __missing__(self, key: tuple[object, ...]) -> tuple[tuple[int, ...], int | None]:
        dtype, *shape = key
        if not is_shape(shape):
            raise ValueError(key)
        dims = tuple(size for size in shape if isinstance(size, int))
        self[key] = dims, byte_count(str(dtype), dims)
        return self[key]
