"""How a reference implementation looks: NumPy arrays in, an array out, nothing reused, no speed."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from csrun.cirh.ops.base import CirhOp, Properties

Array = npt.NDArray[np.generic]
Reference = Callable[..., Array]  # (properties, *operands)
References = Mapping[type[CirhOp], Reference]

__all__ = ["Array", "Properties", "Reference", "References"]
