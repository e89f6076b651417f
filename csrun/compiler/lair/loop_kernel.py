"""Kernels that compute with a loop of LAIR."""

from abc import abstractmethod

from csrun.compiler.graph.kernel import Kernel, Name
from csrun.compiler.lair.loop import KernelLoop


class LoopKernel(Kernel):
    """A kernel with a loop of `lair`, which is a function of the program."""

    @property
    @abstractmethod
    def loop(self) -> KernelLoop:
        """The loop."""

    @property
    def flops(self) -> int:
        return self.loop.flops

    def prepare(self, name: Name) -> list[str]:
        """The line that binds the loop's arrays."""
        return self.loop.prepare(name)

    def emit(self, name: Name) -> list[str]:
        """The call of the loop."""
        return self.loop.emit(name)
