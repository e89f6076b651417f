"""Sequential composition of layers."""

from collections.abc import Callable, Sequence

from csrun.nn.errors import TraceError, user_line
from csrun.nn.tensor import Tensor, require_tensor

Function = Callable[[Tensor], Tensor]


class Sequential:
    """Layers and functions of tensors, each called with the result of the previous one.

    They are separate arguments, as in PyTorch, or one list, as in Keras. With a name, their
    parameters are `<name>/<layer>/…`.

    Raises: TraceError for an argument that is not callable
    """

    def __init__(self, *layers: Function | Sequence[Function], name: str | None = None) -> None:
        given = layers[0] if len(layers) == 1 and isinstance(layers[0], Sequence) else layers
        for layer in given:
            if not callable(layer):
                last = layers[-1]
                hint = f"; pass the name as name={last!r}" if isinstance(last, str) else ""
                raise TraceError(
                    f"{user_line()}: Sequential: expected layers and functions, got {layer!r}{hint}"
                )
        self.layers: tuple[Function, ...] = tuple(layer for layer in given if callable(layer))
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: those of the layers"""
        if self.name is None:
            return self._apply_layers(x)
        with require_tensor("Sequential", x).tracer.in_scope(self.name):
            return self._apply_layers(x)

    def _apply_layers(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x
