"""Log lines of a run, in the form that the original's users know."""

import functools
import logging
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from csrun.base.safe_text import printable
from csrun.base.sizes import size_text
from csrun.records.performance import Rates

RUNNING_CLIENT = "Running the CS Client"
CALLING_MODEL_FN = "Calling model_fn."
DONE_CALLING_MODEL_FN = "Done calling model_fn."
PROGRAMMING = "Programming CS-2 fabric. This may take couple of minutes"
PROGRAMMED = "Fabric programmed"
STREAMERS_READY = "Streamers are ready"
_OWN_FILES = "csrun's own files of this run are in "
_SAVING_TO = "Checkpoints and summaries will be saved in: "


class _Printable(logging.Formatter):
    """Formatter that escapes control sequences, which names of layers and files may contain."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _StderrHandler(logging.Handler):
    """Handler for the current sys.stderr: a progress display replaces it to stay below the
    lines.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            if sys.stderr.isatty():
                line = for_terminal(line, has_colour(sys.stderr))
            print(line, file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)  # a closed pipe or a full disk does not end the run


def configure() -> None:
    """Configure the `csrun` logger to print `INFO:csrun:…` lines, unless the user has configured
    it.
    """
    logger = logging.getLogger("csrun")
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = _StderrHandler()
    handler.setFormatter(_Printable("%(levelname)s:%(name)s:%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    # prevents duplicate lines if a library configures the root logger later
    logger.propagate = False


def saving_to(model_dir: Path) -> str:
    """Return the line about the folder of the run's records."""
    return f"{_SAVING_TO}{model_dir}"


def own_files(folder: Path) -> str:
    """Return the line about that folder for a script with its own model_dir."""
    return f"{_OWN_FILES}{folder}"


def model_dir_in(log: str) -> Path | None:
    """Return the folder that the first of these lines in a task's log names; None without one."""
    found = re.search(rf"^INFO:csrun:(?:{_SAVING_TO}|{_OWN_FILES})(.+)$", log, re.MULTILINE)
    return Path(found[1]) if found else None


def weights_initialized(seconds: float) -> str:
    """Log that the initial weights have been drawn."""
    return f"Completed weight initialization on CPU in: {seconds:.3f} seconds"


def weights_loaded(seconds: float) -> str:
    """Log that the weights are where the system reads them."""
    return f"Loading CPU pre-initialized weights took {seconds:.3f} seconds"


def restoring(path: Path) -> str:
    return f"Restoring parameters from {path}"


def loss_scale(step: int, before: float, now: float, skipped: int) -> str:
    """Log a change of the loss scale after steps; skipped: steps without an update."""
    what = f", {skipped} step(s) skipped, whose gradients overflowed" if skipped else ""
    return f"Loss scale {now:.12g} after global step {step}, was {before:.12g}{what}"


def saving_checkpoint(step: int) -> str:
    return f"Saving checkpoint at global step {step}"


@dataclass(frozen=True)
class PlacedStore:
    """Placement of a MemoryX task's share of the weights; folder: of a store on disk."""

    nbytes: int
    folder: str | None
    memory_bytes: int


def weight_stores(stores: Sequence[PlacedStore], pieces: int) -> str:
    """Log the weight stores; pieces: sets of weights that belong to one task each."""
    shared = f", shared by {len(stores)} MemoryX tasks" if len(stores) > 1 else ""
    if (idle := len(stores) - pieces) > 0:
        what = "weight group(s), counting the shards of a matrix as one"
        shared += f", {idle} of them idle: there are only {pieces} {what}"
    by_folder: dict[str | None, list[PlacedStore]] = {}
    for store in stores:
        by_folder.setdefault(store.folder, []).append(store)
    return f"Weight store: {' and '.join(map(_stored, by_folder.values()))}{shared}"


def _stored(stores: Sequence[PlacedStore]) -> str:
    nbytes, folder = size_text(sum(store.nbytes for store in stores)), stores[0].folder
    if folder is None:
        return f"{nbytes} in memory"
    most = size_text(sum(store.memory_bytes for store in stores))
    return f"{nbytes} on disk in {folder}, up to {most} of it in memory"


def coordinator_up(used_cores: int, cores: int) -> str:
    """Log that the program is loaded on the fabric."""
    used = f"{used_cores / cores:.2%} out of {cores}"
    return f"Coordinator fully up. Waiting for Streaming (using {used} cores on the fabric)"


def waiting_for_streamers(count: int) -> str:
    return f"Waiting for {count} streamer(s) to prime the data pipeline"


def compile_found(directory: Path) -> str:
    return f"Cached compilation found for this model configuration: {directory}"


def step(device: str, step: int, loss: float, rates: Rates) -> str:
    return (
        f"global_step = {step}, loss = {loss:.6g} | Train Device={device}, Step={step}, "
        f"Loss={loss:.5f}, Rate={rates.rate:.2f} samples/sec, "
        f"GlobalRate={rates.global_rate:.2f} samples/sec"
    )


_STEP = re.compile(
    r"global_step = (\d+), loss = (\S+) \| .* Rate=(\S+) samples/sec, GlobalRate=(\S+) samples/sec"
)
_LEVELS = {"INFO": "", "WARNING": "warning: ", "ERROR": "error: ", "CRITICAL": "error: "}
_LINE = re.compile(rf"({'|'.join(_LEVELS)}):csrun:(.*)", re.DOTALL)
_COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31m"}  # yellow, red
_RESET = "\x1b[0m"


@functools.cache
def has_colour(terminal: TextIO) -> bool:
    """Return whether a terminal shows colours and its user wants them (NO_COLOR, TERM)."""
    from rich.console import Console  # slow import, not needed without a terminal

    console = Console(file=terminal)
    return console.color_system is not None and not console.no_color


def for_terminal(line: str, colour: bool) -> str:
    """Shorten a log line for a terminal, with warnings and errors in colour.

    A line that is not of the `csrun` logger is returned unchanged.
    """
    if (found := _LINE.fullmatch(line)) is None:
        return line
    level, text = found.groups()
    if (step := _STEP.fullmatch(text)) is not None:
        number, loss, rate, average = step.groups()
        text = f"step {number}  loss {loss}  {_whole(rate)} samples/s (average {_whole(average)})"
    begin = _COLOURS.get(level, "") if colour else ""
    return f"{begin}{_LEVELS[level]}{text}{_RESET if begin else ''}"


def _whole(rate: str) -> str:
    """Round a rate so that its digits do not change in every line."""
    number = float(rate)
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


MOST_LINES = 3  # lines of a script that are listed


def synchronizations(count_by_line: Counter[str]) -> str:
    """Describe how often a PyTorch loop waited for its steps, and the lines that waited most."""
    most = count_by_line.most_common(MOST_LINES)
    lines = ", ".join(f"{line} ({count})" for line, count in most)
    return f"The loop waited {count_by_line.total()} times for values of steps, at {lines}"


def recorded_steps(count_by_cause: Counter[str]) -> str:
    """Describe how many steps of a PyTorch loop were recorded after the first ones, and why."""
    causes = "; ".join(f"{cause} ({n})" for cause, n in count_by_cause.most_common(MOST_LINES))
    return f"Recorded {count_by_cause.total()} steps after the first ones: {causes}"


def training_finished(samples: int, seconds: float) -> str:
    rate = samples / seconds if seconds > 0 else 0.0
    return (
        f"Training finished with {samples} samples in {seconds:.3f} seconds, "
        f"{rate:.2f} samples/second."
    )


def final_loss(loss: float) -> str:
    """Return the last line of a training."""
    return f"Loss for final step: {loss:.6g}."


def evaluated(results: Mapping[str, float]) -> str:
    """Log the results of an evaluation, as TensorFlow's estimator does."""
    values = dict(results)
    at = int(values.pop("global_step"))
    return f"Saving dict for global step {at}: {_listed(values)}"


def epoch_finished(epoch: int, epochs: int, values: Mapping[str, float]) -> str:
    """Return the line of an epoch of a fit, as numbered by Keras's progress bar."""
    return f"Epoch {epoch + 1}/{epochs}: {_listed(values)}"


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} = {value:.6g}" for name, value in sorted(values.items()))
