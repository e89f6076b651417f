"""What a compile is asked for, besides the model."""

from typing import Annotated

import msgspec

from csrun.base.mode import ExecutionMode, RunMode
from csrun.site.model import System

Positive = Annotated[int, msgspec.Meta(ge=1)]
GROUP_BYTES = 1 << 20  # layers of less weight than this travel together: fewer handoffs a step


class CompileOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of one compile; equal options and an equal model give an equal Executable.

    `system` is the CS system whose memory the model must fit. `blas_threads` belongs to the
    arithmetic: a matrix product on more threads may sum in another order. Each of the model's
    `replicas` on the fabric has `minibatches_in_flight`; where their number was chosen, it was so
    `chosen_for` the model of that checksum.
    """

    mode: ExecutionMode
    run_mode: RunMode
    system: System
    group_bytes: Positive = GROUP_BYTES
    blas_threads: Positive = 1
    replicas: Positive = 1
    minibatches_in_flight: Positive = 1
    chosen_for: str = ""

    @property
    def minibatches(self) -> int:
        """Minibatches of a step, of all replicas."""
        return self.replicas * self.minibatches_in_flight
