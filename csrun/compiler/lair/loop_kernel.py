"""Kernels that compute with a LAIR loop."""

from abc import abstractmethod

from csrun.compiler.graph.kernel import Kernel, Name
from csrun.compiler.lair.loop import KernelLoop


class LoopKernel(Kernel):
    """Kernel with a `lair` loop, which is a function of the program."""

    @property
    @abstractmethod
    def loop(self) -> KernelLoop:
        """Return the loop."""

    @property
    def flops(self) -> int:
        return self.loop.flops

    def prepare(self, name: Name) -> list[str]:
        """Return the line that binds the loop's arrays."""
        return self.loop.prepare(name)

    def emit(self, name: Name) -> list[str]:
        """Return the call of the loop."""
        return self.loop.emit(name)
