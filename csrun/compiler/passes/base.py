"""What a pass is."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp


@dataclass(frozen=True)
class Pass(ABC):
    """Changes a module in place. Fields are its options.

    The docstring of a pass says what holds before and after it; `name` is the stage's, in the
    compile directory and in the log.
    """

    name: ClassVar[str]

    @abstractmethod
    def apply(self, module: ModuleOp) -> list[str]:
        """Do it, and return lines for the log."""
