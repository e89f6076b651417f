"""Input functions of keras_mnist: MNIST's files to batches of images and labels."""

from pathlib import Path

import numpy as np
from params import Input, Params

from csrun.data import Batch, Dataset
from csrun.data.formats import idx


def train_input_fn(params: Params) -> Dataset:
    """Return endless shuffled batches: float32 [B, 28, 28, 1] in 0..1, int32 [B]."""
    samples = _samples(params.train_input, "train")
    batches = samples.shuffle(seed=params.runconfig.seed).repeat()
    return batches.batch(params.train_input.batch_size, drop_remainder=True).map(_scaled)


def eval_input_fn(params: Params) -> Dataset:
    """Return all test images once, in order, in full batches."""
    samples = _samples(params.eval_input, "t10k")
    return samples.batch(params.eval_input.batch_size, drop_remainder=True).map(_scaled)


def _samples(options: Input, prefix: str) -> Dataset:
    here = Path(options.data_dir)
    folder = here if here.is_dir() else Path(__file__).parent / options.data_dir
    images = idx.read(idx.find(folder, f"{prefix}-images-idx3-ubyte"))
    return Dataset.from_arrays(images, idx.read(idx.find(folder, f"{prefix}-labels-idx1-ubyte")))


def _scaled(pixels: np.ndarray, digits: np.ndarray) -> Batch:
    images = np.multiply(pixels[..., None], 1 / 255, dtype=np.float32)
    return images, digits.astype(np.int32)
