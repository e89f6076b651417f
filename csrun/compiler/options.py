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

    system: CS system whose memory the model must fit.
    max_group_bytes: size above which a matrix is sharded, in any mode; None: its share of the
        wafer's memory, in weight streaming only.
    mark_layers: report where each layer begins and ends, for a trace.
    record_steps: first and last step in which each operator's value is recorded.
    number_ranges: in mixed precision, steps between two in which values are measured.
    recompute: recompute activations that do not fit before the backward pass.
    stored_layers: layers of another program's store that this one uses, in their order there.
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
