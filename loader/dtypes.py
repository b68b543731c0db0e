"""Dtype tags of the safetensors header: sizes, torch names, and which casts lose nothing."""

from typing import Literal

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip

TORCH_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E8M0": "float8_e8m0fnu",
    "I16": "int16", "U16": "uint16",
    "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32", "F32": "float32",
    "I64": "int64", "U64": "uint64", "F64": "float64",
}  # fmt: skip

TAGS = {name: tag for tag, name in TORCH_NAMES.items()}

FLOATS = ("F16", "BF16", "F32", "F64")
WIDENINGS = frozenset({("BF16", "F32"), ("F16", "F32"), ("BF16", "F64"), ("F16", "F64"),
                       ("F32", "F64"), ("F8_E8M0", "F32")})  # fmt: skip

Cast = Literal["equal", "widening", "narrowing", "refused"]


def cast(stored: str, wanted: str) -> Cast:
    """What copying a stored dtype into a wanted one does to the values."""
    if stored == wanted:
        return "equal"
    if (stored, wanted) in WIDENINGS:
        return "widening"
    return "narrowing" if stored in FLOATS and wanted in FLOATS else "refused"
