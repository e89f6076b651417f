"""The peers: PyTorch, eager and compiled, on batches that are in memory.

    $ OMP_WAIT_POLICY=passive python peers.py PARAMS THREADS eager|compiled STEPS

prints steps per second.
"""

import sys
import time
from collections.abc import Callable
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any

import torch
from workloads import MODEL

BATCHES = 40
WARM_UP = 20


def make_step(params: Any, compiled: bool) -> Callable[[Any, Any], None]:
    """One training step of the same network and optimizer."""
    sizes = [784, *params.model.hidden_sizes]
    layers: list[torch.nn.Module] = []
    for inner, outer in pairwise(sizes):
        layers += [torch.nn.Linear(inner, outer), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], 10))
    optimizer = _optimizer(model, params.optimizer)

    def loss_of(images: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(images), labels)

    forward = torch.compile(loss_of) if compiled else loss_of

    def step(images: Any, labels: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        forward(images, labels).backward()
        optimizer.step()

    return step


def steps_per_second(step: Callable[[Any, Any], None], batches: list[Any], steps: int) -> float:
    """Train this many steps over the batches, again and again."""
    source = cycle(batches)
    started = time.perf_counter()
    for _ in range(steps):
        step(*next(source))
    return steps / (time.perf_counter() - started)


def tensors(batches: list[Any]) -> list[Any]:
    """Batches of arrays, flattened, as tensors."""
    return [
        (torch.from_numpy(x.reshape(len(x), -1).copy()), torch.from_numpy(y).long())
        for x, y in batches
    ]


def _optimizer(model: torch.nn.Module, options: Any) -> torch.optim.Optimizer:
    kinds = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        "adam": lambda: torch.optim.Adam(model.parameters(), lr=1e-3),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=1e-3),
    }
    return kinds[type(options).__struct_config__.tag]()


def main(path: str, threads: str, form: str, steps: str) -> None:
    """Measure a peer."""
    sys.path.insert(0, str(MODEL))
    from data import train_input_fn
    from params import Params

    from csrun.params import load

    params = load(Params, Path(path))
    torch.set_num_threads(int(threads))
    batches = tensors(list(islice(train_input_fn(params).batches(), BATCHES)))
    step = make_step(params, form == "compiled")
    steps_per_second(step, batches, min(WARM_UP, int(steps)))
    sys.stdout.write(f"{steps_per_second(step, batches, int(steps))}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
