"""How long steps wait for their weights: two looks at the clock where a visit is entered."""

from time import perf_counter

from csrun.executable import Step
from csrun.runtime.step.weights import Weights


class TimedWeights:
    """Weights, and how long `enter` and `settle` took since that was read last.

    weights_s: of visits but the first; first_group_s: of the first, whose updates are the last of
    the step before, and of settling, which waits for them at the end of an order.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.weights_s = self.first_group_s = 0.0

    def enter(self, visit: int) -> None:
        """Have the weights of the visit's groups where its function reads them."""
        began = perf_counter()
        self._weights.enter(visit)
        taken = perf_counter() - began
        if visit:
            self.weights_s += taken
        else:
            self.first_group_s += taken

    def deliver(self, group: int, step: Step) -> None:
        """The group's gradients of this step are complete in the store."""
        self._weights.deliver(group, step)

    def settle(self) -> None:
        """Wait until every delivered gradient has become an update."""
        began = perf_counter()
        self._weights.settle()
        self.first_group_s += perf_counter() - began

    def leave(self) -> None:
        """Another program runs next."""
        self._weights.leave()

    def resume(self) -> None:
        """It runs next, and another one has run before it."""
        self._weights.resume()

    def read(self) -> tuple[float, float]:
        """`weights_s` and `first_group_s`, which begin anew."""
        found = self.weights_s, self.first_group_s
        self.weights_s = self.first_group_s = 0.0
        return found
