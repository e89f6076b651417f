"""Functions for formulas that NumPy does not have.

The compiler traces formulas and registers its own version of each function for traced values.
"""

import math
from functools import singledispatch
from typing import Any

import numpy as np


@singledispatch
def logistic(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


@singledispatch
def normal_cdf(x: Any) -> Any:
    """P(N(0, 1) < x)."""
    erf = np.vectorize(math.erf, otypes=[x.dtype])
    return 0.5 * (1 + erf(x / math.sqrt(2)))
