"""Results that the host computes from each step's batch, in steps that do not run forward's
Python.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from csrun.pytorch.lower.interpret import numbers_of_batch
from csrun.pytorch.record.host_operators import OtherShapesError
from csrun.pytorch.record.recording import LeafSource, RecordedOperator, Recording, Ref, ancestors
from csrun.pytorch.record.rows.padded import valid_rows_in
from csrun.pytorch.record.torch_modes import unrecorded

Known = Mapping[Ref, torch.Tensor]


class HostResults(NamedTuple):
    """Values of one step.

    is_exact: all results have the shapes of step 1, including unused ones.
    rows: number of rows that its mask selects, if the program pads them.
    """

    values: dict[Ref, torch.Tensor]
    is_exact: bool
    rows: int | None = None


class HostValues:
    """Results that the host computes in each step of a variant.

    has_results: false if there are none.
    needed: results that its program takes.
    given: tensors of the script that they are computed from.
    unused_lines: lines of results that the step does not use, such as a metric of the loop.
    """

    def __init__(self, recording: Recording) -> None:
        made = (op.results for op in recording.operators if op.is_of_host)
        self._all = [ref for results in made for ref in results if ref is not None]
        self.has_results = bool(self._all)
        self.needed = [leaf.value for leaf in recording.host_leaves]
        self._valid = valid_rows_in(recording) if recording.row_axes else None
        self._fixed = [ref for ref in self._all if ref in {*self.needed, *recording.shaped}]
        unused = (op for op in recording.operators if op.is_of_host and not self._is_fixed(op))
        self.unused_lines = frozenset(op.line for op in unused)
        made_of = ancestors(recording, self._all) if self._all else set()
        self._inputs = [leaf.value for leaf in recording.of(LeafSource.INPUT)]
        self.given = made_of.intersection(leaf.value for leaf in recording.of(LeafSource.SCRIPT))
        operators = (op for op in recording.operators if made_of.intersection(op.results))
        leaves = (leaf for leaf in recording.leaves if leaf.value in made_of)
        self._recording = replace(recording, operators=tuple(operators), leaves=tuple(leaves))

    def _is_fixed(self, op: RecordedOperator) -> bool:
        return any(ref in self._fixed for ref in op.results)

    def compute(self, batch: object, given: Mapping[Ref, torch.Tensor]) -> HostResults | None:
        """Return the values for a batch; None if one has another shape than in step 1.

        The results include those whose shapes forward's Python may read. given: all tensors of the
        script that are needed.
        """
        known = self._known(batch, given)
        with suppress(OtherShapesError):
            return self._results(known, self._all, True)
        with suppress(OtherShapesError):
            return self._results(known, self._fixed, False)
        return None

    def _results(self, known: Known, wanted: Sequence[Ref], is_exact: bool) -> HostResults:
        found = self._compute(known, wanted)
        rows = None if self._valid is None else int(found[self._valid].sum())
        return HostResults(found, is_exact, rows)

    def _known(self, batch: object, given: Mapping[Ref, torch.Tensor]) -> Known:
        tensors = (x for x in tree_leaves(batch) if isinstance(x, torch.Tensor))
        return {**dict(zip(self._inputs, tensors, strict=True)), **given}

    def _compute(self, known: Known, wanted: Sequence[Ref]) -> dict[Ref, torch.Tensor]:
        with unrecorded():
            found = numbers_of_batch(self._recording, wanted, known)
        return {ref: found[ref].contiguous() for ref in self.needed}
