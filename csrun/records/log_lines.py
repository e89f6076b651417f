"""The lines that a run prints, as the original's users know them."""

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from csrun.records.throughput import Rates

RUNNING_CLIENT = "Running the CS Client"
CALLING_MODEL_FN = "Calling model_fn."
DONE_CALLING_MODEL_FN = "Done calling model_fn."
PROGRAMMING = "Programming CS-2 fabric. This may take couple of minutes"
PROGRAMMED = "Fabric programmed"
STREAMERS_READY = "Streamers are ready"
INPUT_FINE = "Input Function Report: nothing to improve was found."
SHOWN_NAMES = 8  # in a line that a person reads
ANALYZER_SAYS_MORE = "cs_input_analyzer says more"
LOOK_AT_THE_STRAGGLER = "look at what is special about its node, or about its part of the data"
BATCHES_UNEVEN = (
    "that is enough on average, so they come late for another reason: batches that take unequally "
    "long, busy CPUs, or the network between the machines"
)


class _Lines(logging.Handler):
    """Lines on what is sys.stderr just then: a progress display replaces it to stay below them."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)  # a closed pipe or a full disk does not end the run


def configure() -> None:
    """Let the `csrun` logger print `INFO:csrun:…` lines, unless the user has set it up."""
    logger = logging.getLogger("csrun")
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = _Lines()
    handler.setFormatter(logging.Formatter("%(levelname)s:%(name)s:%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # a library that sets up the root logger later prints no line again


def saving_to(model_dir: Path) -> str:
    """Where the run's records go."""
    return f"Checkpoints and summaries will be saved in: {model_dir}"


def weights_initialized(seconds: float) -> str:
    """After drawing the first weights."""
    return f"Completed weight initialization on CPU in: {seconds:.3f} seconds"


def weights_loaded(seconds: float) -> str:
    """After the weights are where the system reads them."""
    return f"Loading CPU pre-initialized weights took {seconds:.3f} seconds"


def restoring(path: Path) -> str:
    """Before reading a checkpoint."""
    return f"Restoring parameters from {path}"


def saving_checkpoint(step: int) -> str:
    """Before writing a checkpoint."""
    return f"Saving checkpoint at global step {step}"


def coordinator_up(used_cores: int, cores: int) -> str:
    """After the fabric has the program."""
    used = f"{used_cores / cores:.2%} out of {cores}"
    return f"Coordinator fully up. Waiting for Streaming (using {used} cores on the fabric)"


def waiting_for_streamers(count: int) -> str:
    """While the rings are empty."""
    return f"Waiting for {count} streamer(s) to prime the data pipeline"


def system_taken(name: str, address: str, mode: str) -> str:
    """Which system a run without --cs_ip uses."""
    return f"No --cs_ip given: using {name} ({address}), the first system in {mode} mode"


def system_busy(name: str, obstacle: str) -> str:
    """While the system cannot be had; the obstacle is e.g. `held by job 1 (process 345)`."""
    return f"Waiting for {name}, {obstacle}"


def without_launcher(asked_for: str) -> str:
    """For a script that asks for a system but was started without csrun_wse."""
    return f"{asked_for} has no effect without csrun_wse: running in this process on the CPU"


def compiling_for(name: str, address: str, mode: str) -> str:
    """Before a compile without a run."""
    return f"Compiling for {name} ({address}) in {mode} mode"


def not_in_mode(name: str, mode: str) -> str:
    """When a compile is for a mode that its system is not in at present."""
    return f"{name} is not in {mode} mode now; it must be when this is to run"


def compiled(directory: Path, seconds: float) -> str:
    """After a compile."""
    return f"Compiled in {seconds:.2f} seconds: {directory}"


def input_report_kept(path: Path) -> str:
    """After the suggestions for the input function."""
    return f"Input Function Report: {path}"


def replicas_chosen(count: int, most: int, gain: float) -> str:
    """How many replicas of the model --multireplica came to."""
    if count > 1:
        return f"Multireplica: {count} replicas of the model, estimated {gain:.2f} x as fast as one"
    why = f"up to {most} fit, and none is estimated to be faster" if most > 1 else "no more fit"
    return f"Multireplica: one replica of the model: {why}"


def compile_found(directory: Path) -> str:
    """In place of a compile."""
    return f"Cached compilation found for this model configuration: {directory}"


def compile_replaced(directory: Path) -> str:
    """After a compile whose folder held one that could not be read."""
    return f"{directory} was of another version of csrun, or damaged: the model was compiled again"


def step(device: str, step: int, loss: float, rates: Rates) -> str:
    """One logging step."""
    return (
        f"global_step = {step}, loss = {loss:.6g} | Train Device={device}, Step={step}, "
        f"Loss={loss:.5f}, Rate={rates.rate:.2f} samples/sec, "
        f"GlobalRate={rates.global_rate:.2f} samples/sec"
    )


def training_finished(samples: int, seconds: float) -> str:
    """After the last step."""
    rate = samples / seconds if seconds > 0 else 0.0
    return (
        f"Training finished with {samples} samples in {seconds:.3f} seconds, "
        f"{rate:.2f} samples/second."
    )


def data_ended(step: int, last: int, streamer: str | None) -> str:
    """For a training whose data ends before its last step; streamer: whose own data it is."""
    whose = f" of {streamer}" if streamer else ""
    return (
        f"The data set{whose} ended at step {step} of {last}: call .repeat() in input_fn, or train "
        "fewer steps"
    )


def input_waited(bound: str, share: float) -> str:
    """The head of a line about a run whose steps wait for batches; bound: the verdict."""
    return f"Input {bound}: the steps waited {share:.0%} of their time for batches"


def input_rates(who: str, delivered: float, asked: float, others: float | None) -> str:
    """What a streamer gives and should give; others: what the rest gives, if that is much more.

    Units: batches a second of one streamer
    """
    beside = f" (the others {_rate(others)})" if others is not None else ""
    return (
        f"{who} delivered {_rate(delivered)} batches/s{beside}, the wafer asked for {_rate(asked)}"
    )


def slow_stage(stage: str | None, stage_s: float, batch_s: float) -> str:
    """Where a streamer's time goes."""
    if stage is None:
        return f"a batch takes {batch_s * 1e3:.3g} ms to make"
    return f"its stage '{stage}' takes {stage_s * 1e3:.3g} ms a batch"


def streamers_needed(count: int, options: str) -> str:
    """How the wafer would be fed."""
    return f"{count} streamers would feed it ({options})"


STREAM_REPLAYED = (
    "more streamers would not feed it, as each makes all batches: give each files or a part of its "
    "own (shard_files, csrun.data.shard_info)"
)


def streamers_beside(count: int) -> str:
    """The same for a run in one process, which makes a batch, then computes its step."""
    many = "1 streamer" if count == 1 else f"{count} streamers"
    return f"{many} of a csrun_wse run would make them beside the steps"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def joining_awaited(names: Sequence[str], seconds: float) -> str:
    """For tasks that have not come to a run yet."""
    shown = ", ".join(names[:SHOWN_NAMES])
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return (
        f"Still waiting for {shown}{more} after {seconds:.0f} s: "
        "a streamer comes when its input_fn has returned"
    )


def peer_awaited(name: str, task: str, seconds: float) -> str:
    """For a peer of the chief that does not answer; task: what it was asked to do."""
    return f"The chief has waited for {name} to {task} for {seconds:.0f} s"


def weights_awaited(seconds: float) -> str:
    """For a MemoryX that does not answer the wafer, in the middle of a run."""
    return f"The wafer has waited for memoryx to update the weights for {seconds:.0f} s"


def batch_awaited(name: str, seconds: float, stage: str | None) -> str:
    """For a streamer whose batch does not come, in the middle of a run."""
    where = f"; it is in its stage '{stage}'" if stage else ""
    return f"The wafer has waited for a batch of {name} for {seconds:.0f} s{where}"


def final_loss(loss: float) -> str:
    """The very last line of a training."""
    return f"Loss for final step: {loss:.6g}."


def checkpoint_discarded(step: int) -> str:
    """For a checkpoint that could not be finished."""
    return f"Checkpoint at global step {step} discarded"


def checkpoint_finished(step: int) -> str:
    """For a checkpoint that was whole when its writer was interrupted."""
    return f"Checkpoint at global step {step} finished before the end"


def evaluated(results: Mapping[str, float]) -> str:
    """The results of an evaluation, as TensorFlow's estimator prints them."""
    values = dict(results)
    at = int(values.pop("global_step"))
    listed = ", ".join(f"{name} = {value:.6g}" for name, value in sorted(values.items()))
    return f"Saving dict for global step {at}: {listed}"
