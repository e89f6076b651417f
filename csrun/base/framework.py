"""Frameworks that csrun's front ends import: supported versions, and how to install them."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Framework:
    """Package with the versions that csrun supports.

    first, end: major and minor number of the first supported version, and of the first one after.
    versions: the same range as text.
    """

    package: str
    title: str
    first: tuple[int, int]
    end: tuple[int, int]
    versions: str
    install: str

    def supports(self, version: str) -> bool:
        """Return whether a version is one of these."""
        found = re.match(r"(\d+)\.(\d+)", version)
        return found is not None and self.first <= (int(found[1]), int(found[2])) < self.end


_TORCH_213 = "'torch==2.13.*'"
TORCH = Framework("torch", "PyTorch", (2, 13), (2, 14), "2.13", f"pip install {_TORCH_213}")
KERAS = Framework(
    "keras",
    "Keras",
    (3, 12),
    (4, 0),
    "3.12 or later, below 4",
    f"pip install 'keras>=3.12,<4' {_TORCH_213}",
)
TENSORFLOW = Framework(
    "tensorflow",
    "TensorFlow",
    (2, 21),
    (2, 22),
    "2.21",
    "pip install 'tensorflow-cpu==2.21.*' 'tf-keras==2.21.*'",
)
