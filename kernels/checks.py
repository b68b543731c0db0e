"""What a kernel demands of its arguments, refused in one form: found, then expected."""

import torch

Shape = tuple[int, ...]


def require(
    name: str,
    tensor: torch.Tensor,
    dtypes: tuple[torch.dtype, ...],
    *shapes: Shape,
) -> None:
    """Raise ValueError unless the dtype is one of `dtypes` and the shape one of `shapes`.

    -1 in a shape is any size; no shapes: any shape.
    """
    require_dtype(name, tensor.dtype, dtypes)
    if shapes and not any(_fits(tensor.shape, shape) for shape in shapes):
        expected = " or ".join(str(list(shape)).replace("-1", "any") for shape in shapes)
        raise ValueError(f"{name} have shape {list(tensor.shape)}; expected {expected}")


def require_dtype(name: str, found: torch.dtype, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise ValueError unless `found` is one of `dtypes`."""
    if found not in dtypes:
        expected = " or ".join(map(_short, dtypes))
        raise ValueError(f"{name} have dtype {_short(found)}; expected {expected}")


def require_multiple(name: str, size: int, of: int) -> None:
    """Raise ValueError unless `size` divides by `of` without rest."""
    if of < 1 or size % of:
        raise ValueError(f"{name} are {size}; expected a multiple of {of}")


def _fits(found: Shape, shape: Shape) -> bool:
    return len(found) == len(shape) and all(
        wanted in (-1, size) for size, wanted in zip(found, shape, strict=True)
    )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
