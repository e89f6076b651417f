"""Functions of the script that run at the end of a step, with plain values."""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from csrun.context import current
from csrun.pytorch.framework.rates import RateTracker
from csrun.pytorch.framework.script import end_step, script
from csrun.pytorch.loop.late_calls import LateCall, late_calls, numbers_of
from csrun.pytorch.settings import is_chief

_DEVICE = "xla:0"  # as in the original's log lines


def step_closure(function: Callable[..., Any]) -> Callable[..., None]:
    """Decorate a function to run in the chief at the end of the step, or now outside of a step.

    Values of the step among its arguments are passed as plain tensors. A function called by forward
    runs in each step.
    """

    @wraps(function)
    def leave(*args: Any, **kwargs: Any) -> None:
        if not is_chief(current()):
            return
        call = LateCall(function, args, kwargs)
        if late_calls.is_in_forward or script.state.is_inside_execution_loop:
            late_calls.leave(call)
        else:
            call.run()

    return leave


def run_step_closures() -> None:
    """Run the functions deferred to the end of the step."""
    late_calls.run()


def mark_step() -> None:
    """End the step."""
    end_step()


def to_cpu(tree: Any) -> Any:
    """Replace the values of a step in a nested structure by plain tensors."""
    return tree_map(numbers_of, tree)


def save(
    state: Any,
    path: str | Path,
    master_only: bool = True,
    post_transfer_callback: Callable[[Any], Any] | None = None,
) -> None:
    """`torch.save` of a nested structure, only in the chief, loadable by PyTorch alone.

    post_transfer_callback: modifies a copy of it before saving.
    """
    if not is_chief(current()):
        return
    state = tree_map(_copied, state)
    if post_transfer_callback is not None:
        state = post_transfer_callback(state)
    torch.save(state, path)


def _copied(leaf: Any) -> Any:
    leaf = numbers_of(leaf)
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def print_update(
    device: Any, step: int, loss: float, mode: str, summary_writer: Any = None
) -> None:
    """Log a step's loss and the rates, and write the rates to the script's events."""
    tracker = script.state.rate_tracker or RateTracker()
    rates = tracker.log()
    logging.info(
        f"| {mode.title()} Device={_DEVICE}, Step={step}, Loss={loss:.5f}, "
        f"Rate={rates.rate:.2f} samples/sec, GlobalRate={rates.global_rate:.2f} samples/sec"
    )
    scalars = {"local_samples_per_sec": rates.rate, "avg_samples_per_sec": rates.global_rate}
    write_to_summary(summary_writer, step, scalars)


def write_to_summary(writer: Any, global_step: int, dict_to_write: Mapping[str, float]) -> None:
    """Write numbers to the script's events, if it has any."""
    if writer is not None:
        for name, value in dict_to_write.items():
            writer.add_scalar(name, value, global_step)


def mesh_reduce(tag: str, value: Any, reduce: Callable[[Iterable[Any]], Any]) -> Any:
    """Return the reduction of the chief's value, the only one."""
    return reduce([value])
