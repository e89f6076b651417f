"""Data types as options of formats name them."""

import numpy as np

INTEGERS = ("i", "u")
NUMBERS = ("i", "u", "f")


def kind_of(dtype: str) -> str:
    """NumPy's letter for the kind of a dtype (i, u, f, b, ...), empty for what is none."""
    try:
        return np.dtype(dtype).kind
    except TypeError:
        return ""
