"""Learning algorithms."""

from dataclasses import dataclass

from xdsl.utils.exceptions import VerifyException

from csrun.cirh.attributes import SgdAttr
from csrun.frontend.nn.errors import TraceError, user_line
from csrun.frontend.nn.tensor import Tensor


@dataclass(frozen=True)
class TrainOp:
    """A loss, and the algorithm that minimizes it."""

    loss: Tensor
    algorithm: SgdAttr


class SGD:
    """Stochastic gradient descent: v = momentum v + gradient, w = w - learning_rate v.

    Raises: TraceError for a learning rate below 0 or a momentum outside [0, 1)
    Source: Sutskever et al. 2013, section 2, in the form of torch.optim.SGD
    """

    def __init__(self, learning_rate: float, momentum: float = 0.0) -> None:
        try:
            self._algorithm = SgdAttr.of(float(learning_rate), float(momentum))
        except (VerifyException, TypeError, ValueError) as error:
            raise TraceError(f"{user_line()}: SGD: {error}") from error

    def minimize(self, loss: Tensor) -> TrainOp:
        """What a model function returns as its train_op."""
        return TrainOp(loss, self._algorithm)
