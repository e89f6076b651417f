"""Checkpoints during training: a thread copies the state, writes it, and adds it to the index.

Steps continue meanwhile: an update waits until the values that it overwrites have been copied.
Tensors of a store on another machine are sent while steps run. A checkpoint is valid once it is in
the index (`csrun.records.checkpoints`); a run that is killed before resumes from the previous one.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from time import perf_counter

from csrun.base.errors import CsrunError
from csrun.context.deferred_termination import DeferredTermination
from csrun.executable.arrays import Array
from csrun.records import checkpoints, log_lines
from csrun.records.tensor_files import Blocks
from csrun.runtime.chief.machine import UpdatePause
from csrun.runtime.step.finite import NotFiniteError, finite

log = logging.getLogger("csrun")

STOPPED_S = 0.1  # for a thread to stop; one that waits for its disk is abandoned


class Saving:
    """Checkpoints of a training; at most one is being written.

    newest: step of the last one that was begun; None if it failed or there was none.
    seconds: time until it was complete.
    """

    def __init__(
        self,
        model_dir: Path,
        writer: checkpoints.Writer,
        ending: DeferredTermination,
        newest: int | None,
        remedy: str,
    ) -> None:
        self._model_dir, self._writer, self._ending = model_dir, writer, ending
        self._remedy = remedy
        self._under_way: Future[None] | None = None
        self._step = 0  # checkpoint that the error belongs to
        self.newest, self.seconds = newest, 0.0

    def begin(
        self,
        step: int,
        state: Mapping[str, Array],
        hold: Callable[[], UpdatePause],
        more: Mapping[str, Array] | None = None,
        unchecked: Collection[str] = (),
    ) -> None:
        """Start to save the current state; steps may continue after the call.

        hold: makes updates wait for the copy.
        more: tensors of the state outside of the store.
        unchecked: names of tensors that need not be finite.

        Raises: CsrunError if the previous checkpoint was not finite, or its disk failed
        """
        self.wait()
        log.info(log_lines.saving_checkpoint(step))
        self.newest = self._step = step
        held = hold()
        self._under_way = _in_thread(
            lambda: self._write(
                step,
                finite({**held.sent, **(more or {})} if held.sent else state, unchecked),
                _CopyNotifier(held),
            )
        )

    def wait(self) -> None:
        """Wait until the last checkpoint is complete.

        Raises: CsrunError if it is not finite, if a disk fails, or if its sender is lost
        """
        if self._under_way is not None:
            self._guarded(self._under_way.result)
            self._under_way = None

    def invalidate(self) -> None:
        """Wait until the last checkpoint is complete, and forget it: the state is about to change.

        Raises: CsrunError as `wait`
        """
        self.wait()
        self.newest = None

    def check(self) -> None:
        """Raises: CsrunError as `wait`, if the last checkpoint has failed"""
        if self._under_way is not None and self._under_way.done():
            self.wait()

    def end(self, error: BaseException | None) -> None:
        """End the block, by this error if there is one; no checkpoint is in progress afterwards.

        An end that does not wait, such as a second Ctrl-C, discards an incomplete checkpoint.
        """
        if self._under_way is None:
            return
        if error is None:
            self.wait()
        elif isinstance(error, Exception):
            try:
                self.wait()
            except CsrunError as another:  # the run ends by the first error
                log.warning(another)
        else:
            self._give_up()

    def last_good(self, step: int, remedy: str = "") -> str:
        """Return the checkpoint to resume from if the weights after `step` are unusable or not
        updated.
        """
        kept = checkpoints.kept_steps(self._model_dir)
        good = max((at for at in kept if at < step), default=max(kept, default=None))
        remedy = remedy or self._remedy
        if good is None:
            return f"there is no checkpoint; {remedy}"
        name = checkpoints.name_of(good)
        place = f", checkpoint_path {self._model_dir / name}" if good < max(kept) else ""
        return f"the last good checkpoint is {name}{place}; {remedy}"

    def _write(self, step: int, state: Mapping[str, Blocks], copies: "_CopyNotifier") -> None:
        """Write a checkpoint (in the thread); a non-finite state must not replace a good one."""
        started = perf_counter()
        try:
            self._writer.write(step, state, copies.count, copies.order_of(state))
        except NotFiniteError as error:
            raise CsrunError(
                f"{error} after step {step}: training stopped; {self.last_good(step)}"
            ) from error
        finally:
            copies.end()
        self.seconds = perf_counter() - started

    def _guarded(self, wait: Callable[[], object]) -> None:
        """Wait; if that ends by an error or a signal, log the outcome of the checkpoint."""
        try:
            wait()
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None and not under_way.done():
            self._writer.stop()
            wait([under_way], STOPPED_S)
        is_whole = self._step in checkpoints.kept_steps(self._model_dir)
        log.info(outcome(self._step, is_whole))
        self.newest = self._step if is_whole else None
        if self._ending.is_late:
            log.warning(
                f"The grace period of {self._ending.grace_s:g} s is over (grace_s in the site file)"
            )


class _CopyNotifier:
    """Notifies the waiting updates of each copied tensor, and at the end of all of them."""

    def __init__(self, held: UpdatePause) -> None:
        self._order, self._held = held.order, held
        self._left, self._names = len(held.order), frozenset(held.order)

    def order_of(self, state: Iterable[str]) -> tuple[str, ...]:
        """Return the names of a state in the order in which updates wait for them."""
        return (*self._order, *(name for name in state if name not in self._names))

    def count(self, name: str) -> None:
        if name in self._names:
            self._release(1)

    def end(self) -> None:
        self._release(self._left)
        self._held.end()

    def _release(self, count: int) -> None:
        self._left -= count
        if count:
            self._held.copied(count)


def _in_thread(work: Callable[[], None]) -> "Future[None]":
    """Run a function in a thread that the process's exit does not wait for."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
            future.set_result(None)
        except BaseException as error:
            future.set_exception(error)

    # Not a ThreadPoolExecutor, whose threads are joined at exit: a dead disk would block it.
    threading.Thread(target=run, name="checkpoint", daemon=True).start()
    return future


def outcome(step: int, is_whole: bool) -> str:
    """Describe the outcome of a checkpoint that was being written, or was due, at the end."""
    how = "completed before the end" if is_whole else "discarded"
    return f"Checkpoint at global step {step} {how}"
