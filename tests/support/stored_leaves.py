"""What each format keeps per linear and per stack of experts on one rank, as published.

An empty dtype stands for the model's own.
"""

from collections.abc import Callable

Stock = tuple[str, tuple[int, ...]]  # dtype and shape


def grid(size: int, block: int = 128) -> int:
    """Blocks that cover a size."""
    return -(-size // block)


def plain_linear(rows: int, columns: int, _parts: int) -> dict[str, Stock]:
    return {"weight": ("", (rows, columns))}


def block_linear(code: str) -> Callable[[int, int, int], dict[str, Stock]]:
    return lambda rows, columns, _parts: {
        "weight": (code, (rows, columns)),
        "weight_scale_inv": ("F32", (grid(rows), grid(columns))),
    }


def channel_linear(rows: int, columns: int, _parts: int) -> dict[str, Stock]:
    return {"weight": ("I8", (rows, columns)), "weight_scale": ("F32", (rows, 1))}


def awq_linear(rows: int, columns: int, _parts: int) -> dict[str, Stock]:
    return {
        "qweight": ("I32", (columns, rows // 8)),
        "qzeros": ("I32", (columns // 128, rows // 8)),
        "scales": ("", (columns // 128, rows)),
    }


def nvfp4_linear(rows: int, columns: int, parts: int) -> dict[str, Stock]:
    return {
        "weight": ("U8", (rows, columns // 2)),
        "weight_scale": ("F8_E4M3", (rows, columns // 16)),
        "weight_scale_2": ("F32", (parts,)),
        "input_scale": ("F32", (parts,)),
    }


def plain_experts(n: int, _total: int, width: int, hidden: int) -> dict[str, Stock]:
    return {"w13_weight": ("", (n, 2 * width, hidden)), "w2_weight": ("", (n, hidden, width))}


def block_experts(code: str) -> Callable[[int, int, int, int], dict[str, Stock]]:
    return lambda n, _total, width, hidden: {
        "w13_weight": (code, (n, 2 * width, hidden)),
        "w13_weight_scale_inv": ("F32", (n, 2 * grid(width), grid(hidden))),
        "w2_weight": (code, (n, hidden, width)),
        "w2_weight_scale_inv": ("F32", (n, grid(hidden), grid(width))),
    }


def channel_experts(n: int, _total: int, width: int, hidden: int) -> dict[str, Stock]:
    return {
        "w13_weight": ("I8", (n, 2 * width, hidden)),
        "w13_weight_scale": ("F32", (n, 2 * width, 1)),
        "w2_weight": ("I8", (n, hidden, width)),
        "w2_weight_scale": ("F32", (n, hidden, 1)),
    }


def awq_experts(n: int, _total: int, width: int, hidden: int) -> dict[str, Stock]:
    return {
        "w13_qweight": ("I32", (n, hidden, 2 * width // 8)),
        "w13_qzeros": ("I32", (n, hidden // 128, 2 * width // 8)),
        "w13_scales": ("", (n, hidden // 128, 2 * width)),
        "w2_qweight": ("I32", (n, width, hidden // 8)),
        "w2_qzeros": ("I32", (n, width // 128, hidden // 8)),
        "w2_scales": ("", (n, width // 128, hidden)),
    }


def w4afp8_experts(n: int, _total: int, width: int, hidden: int) -> dict[str, Stock]:
    return {
        "w13_weight": ("I8", (n, 2 * width, hidden // 2)),
        "w13_weight_scale_inv": ("F32", (n, 2 * width, hidden // 128)),
        "w13_input_scale": ("BF16", (n, 2)),
        "w2_weight": ("I8", (n, hidden, width // 2)),
        "w2_weight_scale_inv": ("F32", (n, hidden, width // 128)),
        "w2_input_scale": ("BF16", (n,)),
    }


def nvfp4_experts(n: int, total: int, width: int, hidden: int) -> dict[str, Stock]:
    """Input scales have a slot for every expert of the model, on every rank."""
    return {
        "w13_weight": ("U8", (n, 2 * width, hidden // 2)),
        "w13_weight_scale": ("F8_E4M3", (n, 2 * width, hidden // 16)),
        "w13_weight_scale_2": ("F32", (n, 2)),
        "w13_input_scale": ("F32", (total, 2)),
        "w2_weight": ("U8", (n, hidden, width // 2)),
        "w2_weight_scale": ("F8_E4M3", (n, hidden, width // 16)),
        "w2_weight_scale_2": ("F32", (n,)),
        "w2_input_scale": ("F32", (total,)),
    }


LINEARS: dict[str, Callable[[int, int, int], dict[str, Stock]]] = {
    "plain": plain_linear,
    "fp8 blocks": block_linear("F8_E4M3"),
    "int8 blocks": block_linear("I8"),
    "int8 channels": channel_linear,
    "awq": awq_linear,
    "nvfp4": nvfp4_linear,
}
EXPERTS: dict[str, Callable[[int, int, int, int], dict[str, Stock]]] = {
    "plain": plain_experts,
    "fp8 blocks": block_experts("F8_E4M3"),
    "int8 blocks": block_experts("I8"),
    "int8 channels": channel_experts,
    "awq": awq_experts,
    "w4afp8": w4afp8_experts,
    "nvfp4": nvfp4_experts,
}
