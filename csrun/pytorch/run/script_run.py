"""Chief's part of a script's run: blocks of its Sessions, over one queue and one store."""

import logging
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import torch

from csrun.base.errors import CsrunError, PeerLost
from csrun.pytorch.deferred_init.tape import is_on_meta
from csrun.pytorch.errors import user_line
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.run.step_queue import StepQueue
from csrun.pytorch.weights.lost_weights_guard import LostWeightsGuard
from csrun.pytorch.weights.store_copies import (
    StoredWeights,
    mapped,
    newest_of,
)
from csrun.records import model_dir
from csrun.records.checkpoints import Checkpoint
from csrun.records.torch_names import stored_name
from csrun.runtime.wire.messages import Results
from csrun.runtime.wire.rendezvous import RUN_FAILED, announce_failed

log = logging.getLogger("csrun")


@dataclass
class ScriptRun(StepQueue):
    """Steps of the loops of one or several Sessions: a training, and its evaluations.

    The wafer is held from Session to Session until `suspend`; model_dir is locked while a Session's
    block runs.
    """

    is_open: bool = False
    are_written: bool = False  # the loop has, or may have, written the model's tensors
    # parameters with a gradient at the last block's end
    left_gradients: frozenset[str] = frozenset()
    lines_warned_of_reads: set[str] = field(default_factory=set)
    _writing: set[str] = field(default_factory=set)  # lines of writes to the weights
    _results: Results = field(default_factory=dict)
    _in_block: ExitStack = field(default_factory=ExitStack)
    _between_blocks: ExitStack = field(default_factory=ExitStack)

    def enter(self) -> None:
        """Begin a Session's block."""
        self._between_blocks.close()
        with ExitStack() as opened:
            opened.enter_context(model_dir.opened(self.run.model_dir))
            if self.users.optimization is not None:
                opened.enter_context(model_dir.locked(self.run.model_dir, self.run.holder))
                opened.enter_context(self.replay.held())
            if not self.is_open:
                self.run = replace(self.run, folder=self.folder())
            self.is_open = True
            for loader in self.loaders:
                loader.changes.begin()
            self._in_block = opened.pop_all()

    def read_user_weights(self) -> None:
        """Read the weights that the script has written since the last block's last step.

        Raises: UsageError if it has written the optimizer's state, or if a run that resumes had
            other state at its beginning
        """
        if self.users.optimization is not None:
            if not self.replay.has_begun:
                self.require_known_state()
            self.replay.require_same_state()
        self.users.integers.take(self.replay.done)
        if self.replay.is_on or self._machine is None or not self.users.are_current:
            return
        self.users.require_unchanged_optimizer()
        if self.users.changed_weights(self._machine.machine.state):
            self._restart_machine()

    def require_known_state(self) -> None:
        """Take the optimizer state that the script has loaded before the first step.

        A run that resumes counts from it, and has the later state in its checkpoint.

        Raises: UsageError for optimizer state that the run's store does not have
        """
        if self.replay.has_begun:
            self.users.require_unchanged_optimizer()
        elif self.users.optimization is not None:
            loaded, steps = self.users.optimization.loaded()
            self.replay.begin_at(steps if loaded else None)
            found = self.replay.found
            stored = () if found is None else found.manifest.tensors
            self._loaded = {name: x for name, x in loaded.items() if name not in stored}

    def read_written_weights(self) -> None:
        """Continue from the weights and counters that the loop has written between two steps."""
        are_written, self.are_written = self.are_written, False
        if not are_written:
            return
        self.users.integers.take(self.replay.done + 1)
        if self._machine is None or self.replay.is_on:
            return
        self.flush()
        if not self.users.are_current:  # an array of weights was created within the step
            return
        if changed := self.users.changed_weights(self._machine.machine.state):
            if (line := user_line()) not in self._writing:
                self._writing.add(line)
                log.info(f"{line}: the loop has written weights: the run continues with them")
            if not self._machine.write(changed):
                self._machine.save()
                self._restart_machine()

    def read_forward_writes(
        self, weights: Mapping[str, torch.nn.Parameter], counters: Collection[str]
    ) -> None:
        """Read the parameters that the next step's forward has written; the step starts from them.

        weights: parameters by name.
        counters: names of integer buffers.
        """
        if counters:
            self.users.integers.take(self.replay.done + 1)
        if not weights or self.replay.is_on:
            return
        self.flush()
        self._write({stored_name(name): x.detach().clone() for name, x in weights.items()})

    def finish_block(self) -> None:
        """Run the queue, save, and copy the results to the user's objects."""
        self.flush()
        self.users.integers.write()
        if self._machine is not None:
            self._results = self._machine.finish_block() or self._results
        if self.replay.is_on:
            self.replay.load_last_checkpoint()
        elif self.users.optimization is not None:
            self._put_in_file()
            self.copy_back()

    def _put_in_file(self) -> None:
        """Map the weights to the newest checkpoint, for a model with memory-mapped weights."""
        users, machine = self.users, self._machine
        if users.is_in_file and self.replay.has_checkpoint and not users.are_current:
            newest = self.saved()
            users.map_weights(newest, machine.machine.state if machine else mapped(newest.path))

    def fail(self, error: BaseException) -> None:
        """Save and return what was trained, and release the system, because the loop has raised."""
        try:
            self._save_after_error()
        except CsrunError as another:
            log.warning(f"Steps after the newest checkpoint are lost: {another}")
        finally:
            is_broken, results = self._failure is not None, None
            if self.run.folder is not None and isinstance(error, Exception):
                announce_failed(self.run.folder, error)
                results = None if is_broken else {RUN_FAILED: 1.0}
            self._close_run(results)

    def _save_after_error(self) -> None:
        machine, by = self._machine, self._failure
        if by is not None:  # the store is between two steps, or within one
            is_whole = machine is not None and machine.has_ended
            is_whole |= isinstance(by, CsrunError) and not isinstance(by, PeerLost)
        else:
            self.flush()
            machine, is_whole = self._machine, True
            if machine is not None:
                machine.save()
        if is_whole and machine is not None and not self.replay.is_on:
            self.copy_back()

    def leave_block(self) -> None:
        """Release resources that are held during a block only; the script may write weights after
        it.
        """
        self.users.keep_weights()
        with self._in_block:
            if self._machine is not None:
                self._machine.leave_block()
        optimization = self.users.optimization
        if optimization is not None and self.replay.has_lost_weights:
            refuse = self.replay.refuse_lost_weights
            gone = LostWeightsGuard(self.users.model, optimization.optimizer, refuse)
            self._between_blocks.enter_context(gone)

    def train_with(self, optimization: Optimization) -> None:
        """Train a model that was only evaluated so far, in another store."""
        self.users.optimization = optimization
        if self.is_open:
            self._restart_machine()

    def suspend(self, word: Results) -> None:
        """Release the system until another Session of this run. word: message to the other
        tasks.
        """
        if self.is_open:
            results = {**self._results, **word}
            self._close_run(results)
            self._announce(results)

    def end(self) -> None:
        """End the run, after its last Session."""
        self._between_blocks.close()

    def _close_run(self, results: Results | None) -> None:
        self.is_open, self._failure = False, None
        self._queued = []
        self._close_machine(results)

    # The user's own objects.

    def read_weights(self) -> None:
        """Copy the weights and counters that the next step uses to the user's model."""
        self.users.integers.write()
        if self.replay.is_on or self.users.are_current:
            return
        if self._machine is not None:
            self.users.copy_weights(self._machine.machine.state)
        else:
            self.replay.load_found_checkpoint()

    def weights_of_store(self) -> Mapping[str, torch.Tensor]:
        """Return weights of a model without memory by name, each read on access.

        Empty for another model, or before the store has them.
        """
        machine = self._machine
        if machine is None or not machine.owner.trains or not is_on_meta(self.users.model):
            return {}
        return StoredWeights(machine.machine.state)

    def saved(self) -> Checkpoint:
        """Return a checkpoint of the store, written now unless the newest is of this step.

        Raises: UsageError before the first step of a new run
        """
        self._finish_order()
        if self._machine is not None:
            self._machine.save()
        return newest_of(self.run.model_dir)

    def copy_back(self) -> None:
        """Copy the store's values to the user's Parameters and optimizer.

        Raises: UsageError in steps that an earlier run has computed
        """
        self.users.integers.write()
        if self.replay.is_at_start or self.users.are_current:
            return
        self.replay.require_over()
        machine = self._machine
        if machine is not None:
            scale = machine.scale_state() or machine.first_scale
            self.users.copy_all(machine.machine.state, self.replay.step, scale)
        else:
            self.replay.load_found_checkpoint()
