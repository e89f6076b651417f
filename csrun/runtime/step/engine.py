"""The step loop of a wafer, the same in a process of its own and inside the CPU run."""

from math import isfinite
from time import perf_counter

import numpy as np

from csrun.base.mode import RunMode
from csrun.executable import Step
from csrun.runtime.step.compute import Compute
from csrun.runtime.step.results import ResultSlots
from csrun.runtime.step.source import BatchSource
from csrun.runtime.step.weights import Weights
from csrun.runtime.wire.messages import StepsDone


class Engine:
    """Runs steps: takes a batch, computes it, keeps the results.

    The outputs of a training are kept for the last step of an order alone: the chief shows no more.
    """

    def __init__(
        self,
        run_mode: RunMode,
        compute: Compute,
        source: BatchSource,
        weights: Weights,
        results: ResultSlots,
    ) -> None:
        self._every_output = run_mode is not RunMode.TRAIN
        self._compute = compute
        self._source = source
        self._weights = weights
        self._results = results
        self._step = Step()

    @np.errstate(all="ignore")  # the step's loss tells what is not finite
    def run(self, first: int, count: int) -> StepsDone:
        """Run up to `count` steps, the first of which is global step `first`.

        Stops early at the end of the data, and before the update of a step whose loss is not
        finite. On return every update is committed.
        """
        started = perf_counter()
        step, samples = self._step, 0
        bad_loss: float | None = None
        finished = False
        for done in range(count):
            taken = self._source.take()
            if taken is None:
                finished = True
                break
            batch, step.rows = taken
            step.index = first + done
            loss_sum = self._compute.run(batch, step)
            if not isfinite(loss_sum):
                bad_loss = loss_sum
                break
            last = done == count - 1
            self._results.record(done, loss_sum, step.rows)
            if self._every_output or last:
                self._results.record_outputs(done, self._compute.outputs)
            self._source.release()
            samples += step.rows
        else:
            done = count
        if finished and done and not self._every_output:  # the last step's are still there
            self._results.record_outputs(done - 1, self._compute.outputs)
        self._weights.settle()
        seconds = perf_counter() - started
        return StepsDone(done, samples, seconds, self._source.used(), finished, bad_loss)
