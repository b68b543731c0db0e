"""No quantisation: one tensor per weight, in the model's dtype."""

from loadscope.loader.tables import Format, Leaf


def make(dtype: str) -> Format:
    return Format(name=f"none ({dtype})", leaves=(Leaf("weight", dtype),))
