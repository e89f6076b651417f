"""Recorded steps of a variant computed by PyTorch, from the same weights and batch.

Weights and batch are those that the program has recorded. A thread waits for them, so the loop
continues with the same order of steps.
"""

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from csrun.advice.operator_comparison.step_values import StepValues
from csrun.advice.operator_comparison.value_difference import AnyArray
from csrun.base.files import write_atomic
from csrun.executable import INPUT, RECORDED, Executable
from csrun.executable.recorded_values import (
    DONE,
    FOLDER,
    OF_TORCH,
    ValueFile,
    update_file,
    write_values,
)
from csrun.pytorch.lower.dropout_masks import MaskKey
from csrun.pytorch.lower.interpret import interpret
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.optimizers.optimization import Form
from csrun.pytorch.record.recording import GraphLeaf, LeafSource, Recording, Ref
from csrun.pytorch.record.torch_modes import onednn
from csrun.pytorch.run.torch_updates import TorchUpdates
from csrun.records.torch_names import stored_name

POLL_S = 0.02

log = logging.getLogger("csrun")


@dataclass
class TorchReference:
    """PyTorch's values of the steps that a compiled variant records.

    optimization: None if the program's updates follow no rule.
    form: of its updates.
    """

    recording: Recording
    executable: Executable
    optimization: Optimization | None
    form: Form
    seed: int

    def start(self) -> None:
        """Compute them in a thread as soon as the steps have run."""
        threading.Thread(target=self._compute, name="torch-reference").start()

    def _compute(self) -> None:
        folder, recorded = self.executable.directory / FOLDER, self.executable.plan.recording
        assert recorded is not None, "the program records"
        main, over = threading.main_thread(), threading.Event()
        while main.is_alive() and not self._is_over():
            over.wait(POLL_S)
        of_torch, failure = folder / OF_TORCH, ""
        try:
            for step in range(recorded.first, recorded.last + 1):
                found = StepValues.of(self.executable.plan, folder, step)
                if found.files:
                    of_torch.mkdir(exist_ok=True)
                    self._compute_step(found, step, of_torch)
        except Exception as error:
            log.exception("PyTorch cannot compute the recorded step")
            failure = f"{type(error).__name__}: {error}"
        of_torch.mkdir(parents=True, exist_ok=True)
        write_atomic(of_torch / DONE, failure.encode(), durable=False)

    def _is_over(self) -> bool:
        """Return whether any program of the run is past the recorded steps."""
        return any(self.executable.directory.parent.glob(f"tfcs_*/{FOLDER}/{DONE}"))

    def _compute_step(self, found: StepValues, step: int, of_torch: Path) -> None:
        """Write the values of each batch of a step, and those of its update."""
        batches: dict[int, list[ValueFile]] = {}
        for file in found.files:
            batches.setdefault(file.batch, []).append(file)
        for batch, files in batches.items():
            values = self._values(StepValues(found.plan, files, []), step)
            write_values(of_torch / f"{step}-{batch}-0.values", values)
        if self.optimization is not None:
            updates = TorchUpdates(self.recording, self.optimization, self.form, found, step)
            write_values(update_file(of_torch, step, 0), updates.values())

    def _values(self, found: StepValues, step: int) -> Iterator[tuple[int, AnyArray]]:
        """Return values that both compute, by their numbers in the plan."""
        recorded = self.executable.plan.recording
        assert recorded is not None, "the program records"
        wanted = {
            number: Ref.of(int(value.recorded.removeprefix(RECORDED).partition("_")[0]))
            for number, value in enumerate(recorded.values)
            if value.recorded
        }
        given = {
            leaf.name: tensor
            for leaf in self.recording.leaves
            if (tensor := self._given(leaf, found)) is not None
        }
        draw = MaskKey(self.seed, step - 1, found.files[0].batch)
        with onednn(True):
            numbers = interpret(self.recording, wanted.values(), given, draw)
        for number, ref in wanted.items():
            yield number, numbers[ref].contiguous().numpy()

    def _given(self, leaf: GraphLeaf, found: StepValues) -> torch.Tensor | None:
        """Return a leaf as the program has read it; None if it has not."""
        match leaf.source:
            case LeafSource.INPUT:
                key = INPUT + leaf.name
            case LeafSource.SCRIPT:
                key = f"{INPUT}script_{self.recording.script_leaves.index(leaf)}"
            case LeafSource.PARAMETER | LeafSource.BUFFER:
                key = f"weights/{stored_name(leaf.name)}"
            case _:
                return None
        value = found.value(key) if key in found.numbers else None
        if value is None:
            return None
        tensor = torch.from_numpy(value.numbers.copy())
        shape = self.recording.kind(leaf.value).shape
        if tensor.shape != shape and tensor.T.shape == shape:  # the store has its transpose
            tensor = tensor.T
        return tensor.to(leaf.tensor.dtype)
