"""Layers one after the other."""

from collections.abc import Callable, Sequence

from csrun.nn.errors import TraceError, user_line
from csrun.nn.tensor import Tensor, require_tensor

Function = Callable[[Tensor], Tensor]


class Sequential:
    """Layers and functions of tensors, each called with what the one before gave.

    With a name their parameters are `<name>/<layer>/…`.

    Raises: TraceError for what cannot be called
    """

    def __init__(self, layers: Sequence[Function], name: str | None = None) -> None:
        for layer in layers:
            if not callable(layer):
                raise TraceError(
                    f"{user_line()}: Sequential: expected layers and functions, got {layer!r}"
                )
        self.layers = tuple(layers)
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: as the layers'"""
        if self.name is None:
            return self._through(x)
        with require_tensor("Sequential", x).tracer.in_scope(self.name):
            return self._through(x)

    def _through(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x
