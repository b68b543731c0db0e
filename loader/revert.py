"""What lost nothing on its way to a parameter, undone: widened floats, repacked AWQ tensors.

kernels/repack_awq.py has AWQ's layouts. What was repeated for a group size cut to fit must still be
equal: else there is no tensor in the files that would give it.
"""

from collections.abc import Callable

import torch

from loadscope.kernels.dequantise_awq import NIBBLE_OF_COLUMN
from loadscope.loader.copies import SAME_WIDTH
from loadscope.loader.schema import Source

# which column's code is nibble 0 … 7 of a word
COLUMN_OF_NIBBLE = sorted(range(8), key=NIBBLE_OF_COLUMN.__getitem__)
Undo = Callable[[Source, torch.Tensor], torch.Tensor | None]


def can_revert(source: Source) -> bool:
    return source.convert in UNDO


def revert(source: Source, values: torch.Tensor) -> torch.Tensor | None:
    """The stored tensor whose conversion gives these values of the source's extent; None if none.

    Its dtype is that of the values where the conversion only moves them.
    """
    assert source.convert is not None
    return UNDO[source.convert](source, values)


def _codes(_source: Source, values: torch.Tensor) -> torch.Tensor | None:
    """uint8 [N, K/2] to int32 [K, N/8]."""
    return _pack_words(_unpack_row_pairs(values.t()))


def _zeros(source: Source, values: torch.Tensor) -> torch.Tensor | None:
    """uint8 [N/2, K/g * repeat] to int32 [K/g, N/8]."""
    once = _once(values, source.arguments[0])
    return None if once is None else _pack_words(_unpack_row_pairs(once).t())


def _scales(source: Source, values: torch.Tensor) -> torch.Tensor | None:
    """[N, K/g * repeat] to [K/g, N]."""
    once = _once(values, source.arguments[0])
    return None if once is None else once.t().contiguous()


def _once(values: torch.Tensor, repeat: int) -> torch.Tensor | None:
    """The first of every `repeat` columns; None if the others are not the same bits."""
    groups = values.reshape(values.shape[0], -1, repeat)
    first = groups[:, :, :1]
    return first.squeeze(2) if same_bits(groups, first.expand_as(groups)) else None


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one dtype and shape are equal bit by bit, NaN and -0 included."""
    bits = SAME_WIDTH[one.element_size()]
    return torch.equal(one.view(bits), other.view(bits))


def _unpack_row_pairs(packed: torch.Tensor) -> torch.Tensor:
    """[R/2, C] bytes to [R, C] codes; the even row is the low nibble."""
    return torch.stack((packed & 0xF, packed >> 4), dim=1).flatten(0, 1)


def _pack_words(codes: torch.Tensor) -> torch.Tensor:
    """Codes [R, C] to int32 [R, C/8]."""
    nibbles = codes.reshape(codes.shape[0], -1, 8)[:, :, COLUMN_OF_NIBBLE]
    pairs = nibbles[:, :, 0::2] | (nibbles[:, :, 1::2] << 4)
    return pairs.contiguous().view(torch.int32).squeeze(2)


def narrow(held: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """Back to the dtype that was widened; None if it does not have all of the values."""
    if (dtype, held.dtype) == (torch.bfloat16, torch.float32):
        # by bits: a cast would lose what a NaN carries
        bits = held.contiguous().view(torch.int32)
        if bool((bits & 0xFFFF).any()):
            return None
        return (bits >> 16).to(torch.int16).view(dtype)
    back = held.to(dtype)
    return back if same_bits(back.to(held.dtype), held) else None


UNDO: dict[str, Undo] = {
    "repack_awq_codes": _codes,
    "repack_awq_zeros": _zeros,
    "transpose_scales": _scales,
}
