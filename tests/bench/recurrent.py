"""PyTorch loop of a GRU encoder-decoder, compared with plain PyTorch, eager and compiled.

    $ scripts/bench recurrent

Each side is a run of this file with arguments, which prints its steps per second: in one process,
with one thread and with all CPUs. In plain PyTorch `cerebras_torch` is a module that does nothing.
"""

import os
import re
import sys
import tempfile
from functools import partial
from time import perf_counter

from pytorch import BENCH, PLAIN, started
from result import Result, interleaved

ROUNDS = 5
WARM_STEPS, STEPS = 6, 24
VOCABULARY, EMBEDDING, HIDDEN, BATCH, LENGTH = 5000, 256, 512, 64, 20
AT_LEAST = 1.0
CSRUN, EAGER, COMPILED = "csrun", "PyTorch eager", "torch.compile"
NAME = f"GRU encoder-decoder, {HIDDEN} units, batch {BATCH}, {LENGTH} tokens"


def bench() -> None:
    """Print all sides over the fastest of PyTorch."""
    counts = sorted({1, len(os.sched_getaffinity(0))})
    sides = {(CSRUN, counts[-1]): partial(run, CSRUN, counts[-1])}
    for count in counts:
        sides |= {(side, count): partial(run, side, count) for side in (EAGER, COMPILED)}
    medians = interleaved(sides, ROUNDS)
    best = max(value for (side, _), value in medians.items() if side != CSRUN)
    for (side, threads), value in medians.items():
        Result(
            "recurrent", NAME, f"{side}, {threads} threads", "steps/s", value, "best of PyTorch",
            value / best, ROUNDS, at_least=AT_LEAST if side == CSRUN else None,
        ).print()  # fmt: skip


def run(side: str, threads: int) -> float:
    """Steps per second of a run."""
    variables = {} if side == CSRUN else {"PYTHONPATH": str(PLAIN)}
    command = (sys.executable, BENCH / "recurrent.py", side, threads)
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        said = started(command, folder, variables)
    return float(re.findall(r"^steps/s (\S+)$", said, re.M)[0])


def train(side: str, threads: int) -> None:
    """The user's loop."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    import cerebras_torch as cbtorch

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source = nn.Embedding(VOCABULARY, EMBEDDING)
            self.target = nn.Embedding(VOCABULARY, EMBEDDING)
            self.encoder = nn.GRU(EMBEDDING, HIDDEN, batch_first=True)
            self.decoder = nn.GRU(EMBEDDING, HIDDEN, batch_first=True)
            self.last = nn.Linear(HIDDEN, VOCABULARY)

        def forward(self, words: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            _, state = self.encoder(self.source(words))
            return self.last(self.decoder(self.target(wanted), state)[0])

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    cbtorch.initialize(model_dir="model_dir")
    sentences = torch.randint(VOCABULARY, (2, BATCH * (WARM_STEPS + STEPS), LENGTH))
    loader = cbtorch.dataloader(DataLoader(TensorDataset(*sentences), batch_size=BATCH))
    model = cbtorch.module(Translator())
    forward = torch.compile(model) if side == COMPILED else model
    optimizer, criterion = torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss()
    with cbtorch.Session(model, optimizer, criterion, mode="train"):
        for step, (words, wanted) in enumerate(loader, 1):
            optimizer.zero_grad()
            loss = criterion(forward(words, wanted).flatten(0, 1), wanted.flatten())
            loss.backward()
            optimizer.step()
            if step == WARM_STEPS:
                loss.item()
                begun_s = perf_counter()
        loss.item()
        print("steps/s", STEPS / (perf_counter() - begun_s), flush=True)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2])) if sys.argv[1:] else bench()
