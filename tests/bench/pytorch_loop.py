"""A user's training loop over a model of reference_models, which tells its own steps per second.

python pytorch_loop.py MODEL PARAMS LOADER SECONDS EVERY [recorded]: the loss is read every EVERY
steps, and the loop ends when it is read after this many seconds. LOADER is `samples`, the script's
own DataLoader, or `batches`, which takes a batch's rows at once; `recorded` has csrun record each
step. What `cerebras_torch` is, csrun's or nothing at all, is PYTHONPATH's to say. Prints steps a
second, and the processor time of a step in this thread, in microseconds: between two readings
(us/step) and with a reading (us/whole); the least, as what disturbs only adds to it.
"""

import sys
from importlib import import_module
from itertools import chain, repeat
from math import ceil, inf
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import msgspec
import torch
import yaml
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import cerebras_torch as cbtorch

MODELS = Path(__file__).parents[2] / "reference_models"
WARM_STEPS = 20  # the first is compiled, and some to come to speed
NEVER = 10**9


def main(
    name: str, params_path: str, loader: str, seconds: float, every: int, is_fast: bool
) -> None:
    """Train, and print how fast."""
    warm = ceil(WARM_STEPS / every) * every
    sys.path.insert(0, str(MODELS / name))
    run, params = import_module("run_torch"), params_of(name, params_path)
    torch.manual_seed(1)
    options = {"log_steps": NEVER, "save_checkpoints_steps": NEVER, "fast": is_fast}
    cbtorch.initialize(model_dir="model_dir", **options)
    model, optimizer, criterion, dataloader, clip = parts_of(name, run, params)
    model = cbtorch.module(model)
    dataloader = cbtorch.dataloader(dataloader if loader == "samples" else by_batches(dataloader))
    cpu_s, least_s, least_whole_s = thread_time(), inf, inf
    with cbtorch.Session(model, optimizer, criterion, mode="train"):
        for step, (features, labels) in enumerate(chain.from_iterable(repeat(dataloader)), 1):
            optimizer.zero_grad()
            found = model(**features) if isinstance(features, dict) else model(features)
            loss = criterion(found, labels)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if step % every:
                continue
            spent_s = thread_time() - cpu_s  # since the last reading, without that or this one
            loss.item()
            before_s, cpu_s = cpu_s, thread_time()
            if step == warm:
                begun_s = perf_counter()
            elif step > warm:
                least_s, least_whole_s = min(least_s, spent_s), min(least_whole_s, cpu_s - before_s)
                if (taken_s := perf_counter() - begun_s) >= seconds:
                    print("steps/s", (step - warm) / taken_s)
                    print("us/step", least_s / every * 1e6)
                    print("us/whole", least_whole_s / every * 1e6, flush=True)
                    break


def params_of(name: str, path: str) -> Any:
    """The params file as that model's script has it."""
    text = Path(path).read_text()
    if name == "bert":
        return msgspec.yaml.decode(text, type=import_module("params").Params)
    return yaml.safe_load(text)


def parts_of(name: str, run: Any, params: Any) -> tuple[Any, ...]:
    """Model, optimizer, criterion, DataLoader, and how long gradients may be."""
    if name == "fc_mnist":
        model = run.Network(params["model"]["hidden_sizes"])
        optimizer = run.get_optimizer(model, params["optimizer"])
        loader = run.get_train_dataloader(params["train_input"])
        return model, optimizer, nn.CrossEntropyLoss(), loader, None
    if name == "gpt2":
        model = run.Gpt(params["model"])
        optimizer = run.get_optimizer(model, params["optimizer"])
        loader, clip = run.get_train_dataloader(params), params["optimizer"]["clip_norm"]
        return model, optimizer, run.NextToken(), loader, clip
    model = run.Bert(params.model)
    optimizer, clip = run.get_optimizer(model, params), params.optimizer.clip_norm
    return model, optimizer, run.Pretraining(), run.get_train_dataloader(params), clip


class Rows(torch.utils.data.Dataset):
    """Samples, put together once, whose batches are taken at once."""

    def __init__(self, loader: DataLoader) -> None:
        numbers = range(len(loader.dataset))
        self._all = loader.collate_fn([loader.dataset[number] for number in numbers])

    def __len__(self) -> int:
        return len(self._all[0])

    def __getitem__(self, rows: list[int]) -> Any:
        return [column[rows] for column in self._all]


def by_batches(loader: DataLoader) -> DataLoader:
    """The same samples, of which a batch's are taken at once."""
    rows = Rows(loader)
    order = BatchSampler(RandomSampler(rows), loader.batch_size, drop_last=True)
    return DataLoader(rows, batch_size=None, sampler=order)


if __name__ == "__main__":
    main(*sys.argv[1:4], float(sys.argv[4]), int(sys.argv[5]), sys.argv[6:] != ["recorded"])
