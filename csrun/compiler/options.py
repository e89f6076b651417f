"""Options of a compile."""

from typing import Annotated

import msgspec

from csrun.base.mode import RunMode
from csrun.executable import PlanOptions
from csrun.site.site import System

Positive = Annotated[int, msgspec.Meta(ge=1)]
SHARE = 8  # share of the wafer's memory above which a weight matrix is sharded
# bytes of weights up to which layers are grouped, for fewer transfers per step
GROUP_BYTES = 1 << 20


class CompileOptions(PlanOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of one compile; equal options and an equal model give an equal Executable.

    `system` is the CS system whose memory the model must fit. A matrix of more than
    `max_group_bytes` comes in parts, in whatever mode; without it in weight streaming alone, where
    it takes more than its share of the wafer. With `mark_layers` the program says where each layer
    begins and ends, for a trace. record_steps: the first and the last step in which it records the
    value of each operator. number_ranges: in mixed precision, steps between two in which it
    measures these values.
    recompute: where activations do not fit, make them again before the backward pass.
    stored_layers: those of the store that the program uses, in their order there, if it is another
    program's.
    """

    system: System
    group_bytes: Positive = GROUP_BYTES
    max_group_bytes: Positive | None = None
    mark_layers: bool = False
    record_steps: tuple[int, int] | None = None
    number_ranges: Positive | None = None
    recompute: bool = False
    stored_layers: tuple[str, ...] = ()

    @property
    def part_bytes(self) -> int | None:
        """Maximum size of a matrix that is not sharded; None if none is."""
        if self.max_group_bytes is not None:
            return self.max_group_bytes
        return self.system.sram_bytes // SHARE if self.is_streaming else None

    @property
    def adds_gradients(self) -> bool:
        """Return whether gradients are accumulated in the store."""
        is_one = self.minibatches == 1 and not self.accumulates
        return self.run_mode is RunMode.TRAIN and not is_one
