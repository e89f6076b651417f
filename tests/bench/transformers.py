"""Training steps a second of the GPTs beside PyTorch eager, one thread on both sides.

Both sides take one batch that lies in memory, compute loss and gradients, and update by AdamW; on
csrun's, the compiled program runs in this process, without a runtime around it. Once with the
environment as it is found, once without the variables that choose OpenBLAS's core.
"""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
from processes import with_and_without_openblas
from result import Result, interleaved
from threadpoolctl import threadpool_limits

TESTS = Path(__file__).parents[1]
GPT2 = TESTS.parent / "reference_models" / "gpt2"
sys.path[:0] = [str(TESTS), str(GPT2)]

ROUNDS, STEPS = 7, 2
BASELINE = "PyTorch eager"
RATE, DECAY = 1e-3, 0.01


@dataclass(frozen=True)
class Workload:
    """Sizes of a GPT, in the words of its params file."""

    name: str
    hidden_size: int
    num_hidden_layers: int
    num_heads: int
    sequence_length: int
    batch: int
    vocabulary: int


WORKLOADS = (
    Workload("GPT, d 384, 6 layers, T 256, batch 4, bytes", 384, 6, 6, 256, 4, 256),
    Workload("GPT-2's width, d 768, 4 layers, T 256, batch 2", 768, 4, 12, 256, 2, 50257),
)


def params_of(workload: Workload) -> Any:
    from params import Params

    from csrun import nn
    from csrun.params import load

    params = load(Params, GPT2 / "configs" / "params.yaml")
    names = ("hidden_size", "num_hidden_layers", "num_heads", "sequence_length", "vocabulary")
    sizes = {name: getattr(workload, name) for name in names}
    model = msgspec.structs.replace(
        params.model, max_position_embeddings=workload.sequence_length, **sizes
    )
    optimizer = nn.AdamW(RATE, weight_decay=DECAY)
    return msgspec.structs.replace(params, model=model, optimizer=optimizer)


def executable_of(params: Any, shape: tuple[int, int], root: Path) -> Any:
    """The network compiled for a pipelined run."""
    from model import model_fn
    from support.programs import options_of

    from csrun import nn
    from csrun.base.mode import RunMode
    from csrun.compiler import compile_model
    from csrun.nn.tracer import Tracer

    with Tracer("float32") as tracer:
        tokens, labels = (tracer.input(n, shape, "int32") for n in ("features", "labels"))
        spec = model_fn(tokens, labels, nn.TRAIN, params)
        module = tracer.finish(RunMode.TRAIN, spec.loss, spec.train_op, [])
    return compile_model(module, root, options_of()).executable


def csrun_step(executable: Any, batch: Any, weights: dict[str, Any]) -> Callable[[], None]:
    """One step of a compiled program."""
    from support.programs import Machine, step_of

    from csrun.executable import Runtime
    from csrun.runtime.step.weights import Updates

    plan = executable.plan
    machine = Machine(executable, weights)
    visits = executable.wafer_program(machine.arena, machine.store, Runtime(seed=0)).visits
    updates = Updates(plan, executable.update_program(machine.store, Runtime(seed=0)))
    step = step_of(plan, batch, len(batch[0]))

    def run() -> None:
        for visit in visits:
            visit(batch, step)
        for group in plan.deliveries:
            updates.deliver(group, step)
        step.index += 1

    return run


def torch_step(params: Any, batch: Any, weights: dict[str, Any]) -> Callable[[], None]:
    """One step of the same network in PyTorch."""
    import torch
    from support.torch_gpt2 import TorchGpt2

    torch.set_num_threads(1)
    peer = TorchGpt2(torch, weights, params.model)
    optimizer = torch.optim.AdamW(list(peer.weights.values()), RATE, weight_decay=DECAY)

    def run() -> None:
        optimizer.zero_grad()
        peer.loss(*batch).backward()
        optimizer.step()

    return run


def bench(workload: Workload, settings: str) -> None:
    """Print the median of csrun over that of PyTorch."""
    params, random = params_of(workload), np.random.default_rng(1)
    shape = workload.batch, workload.sequence_length
    batch = tuple(random.integers(0, workload.vocabulary, shape).astype("int32") for _ in "xy")
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        executable = executable_of(params, shape, Path(folder))
        weights = {
            p.name: (0.02 * random.standard_normal(p.shape) + p.name.endswith("gamma")).astype("f")
            for p in executable.plan.parameters
        }
        steps = {
            "csrun": csrun_step(executable, batch, weights),
            BASELINE: torch_step(params, batch, weights),
        }
    with threadpool_limits(1, user_api="blas"):
        for step in steps.values():
            step()
        sides = {name: lambda step=step: steps_per_second(step) for name, step in steps.items()}
        medians = interleaved(sides, ROUNDS)
    ratio = medians["csrun"] / medians[BASELINE]
    name = f"{workload.name}, {settings}"
    wanted = 1.3 if settings == "BLAS unset" else 1.0
    Result(
        "transformers", name, "csrun", "steps/s", medians["csrun"], BASELINE, ratio, ROUNDS, wanted
    ).print()


def steps_per_second(step: Callable[[], None]) -> float:
    started = perf_counter()
    for _ in range(STEPS):
        step()
    return STEPS / (perf_counter() - started)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        for chosen in WORKLOADS:
            bench(chosen, sys.argv[1])
    else:
        with_and_without_openblas(__file__)
