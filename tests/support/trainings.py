"""References for trainings: PyTorch's results, and tables of a text."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from support.torch_bert import TorchBert

from csrun.cirh.ops.loss import IGNORE_INDEX
from csrun.data.formats import Tokens

BYTES = 256
SPARED = "bias|gamma|beta"  # from weight decay, by bert's params file


def rate_of(params: Any) -> Any:
    """The learning rate of each step: a number, or a line down after a line up."""
    rate = params.optimizer.learning_rate
    if isinstance(rate, float):
        return rate
    first, last = rate.initial_learning_rate, rate.end_learning_rate
    warmup, steps = rate.warmup_steps, rate.steps

    def at(step: int) -> float:
        if step < warmup:
            return first * step / warmup
        return last + (first - last) * max(0.0, 1 - (step - warmup) / steps)

    return at


def beside(peer: Any, params: Any, some: Any) -> list[float]:
    """PyTorch's losses by the params' optimizer."""
    optimizer = params.optimizer
    spared = SPARED if optimizer.exclude_from_weight_decay else "$^"
    betas = (optimizer.beta1, optimizer.beta2)
    rate, decay = rate_of(params), optimizer.weight_decay
    return peer.train(some, rate, optimizer.clip_norm, decay, spared, betas)


def text_of(path: Path) -> np.ndarray:
    """The ids of a token file. Shapes: -> [N]"""
    arrays, _ = Tokens(1).arrays(path)
    return np.asarray(arrays[:, 0]).astype(np.int64)


def byte_nats(text: np.ndarray) -> float:
    """Entropy per byte of the frequencies in a text, in nats. Shapes: [N]"""
    counts = np.bincount(text, minlength=BYTES)
    shares = counts[counts > 0] / len(text)
    return -float(np.sum(shares * np.log(shares)))


def pair_nats(train: np.ndarray, text: np.ndarray) -> float:
    """Of a byte, by the best of some tables of pairs: each count raised by some constant."""
    counts = np.bincount(train[:-1] * BYTES + train[1:], minlength=BYTES**2)
    counts = counts.reshape(BYTES, BYTES)
    found, totals = counts[text[:-1], text[1:]], counts.sum(axis=1)[text[:-1]]
    raised = (0.01, 0.03, 0.1, 0.3, 1.0)
    return min(-float(np.mean(np.log((found + a) / (totals + BYTES * a)))) for a in raised)


def by_neighbours(library: Path) -> float:
    """The accuracy of a table that has seen the training text: both neighbours give a byte."""
    train = text_of(library / "train.bin")
    triples = (train[:-2] * BYTES + train[2:]) * BYTES + train[1:-1]
    table = np.bincount(triples, minlength=BYTES**3).reshape(-1, BYTES).argmax(axis=1)
    return float(np.mean(table[train[:-2] * BYTES + train[2:]] == train[1:-1]))


def nested_batches(dataset: Any, count: int) -> Iterator[tuple[Any, Any]]:
    return (dataset.nested(flat) for flat in islice(dataset, count))


def masked_accuracy(peer: TorchBert, some: Iterable[tuple[Any, Any]]) -> float:
    """PyTorch's, of the masked tokens of some batches."""
    right = masked = 0
    for features, labels in some:
        found = peer.logits(features)[0].detach().numpy().argmax(-1)
        wanted = labels["masked_lm_labels"]
        right += int(np.sum(found == wanted))
        masked += int(np.sum(wanted != IGNORE_INDEX))
    return right / masked
