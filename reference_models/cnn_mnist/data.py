"""Input functions of cnn_mnist: MNIST's files to batches of images and labels."""

from pathlib import Path

import numpy as np
from params import Params

from csrun.data import Batch, DataError, Dataset
from csrun.data.formats import idx

IMAGE_SHAPE = (28, 28)


def train_input_fn(params: Params) -> Dataset:
    """Return endless shuffled batches: float32 [B, 28, 28] in 0..1, int32 [B]."""
    options = params.train_input
    images, labels = read_digits(options.data_dir, "train")
    shifts = shifts_up_to(options.max_shift)

    def load(elements: np.ndarray) -> Batch:
        variant, sample = np.divmod(elements, len(images))
        return scaled(shifted(images[sample], shifts[variant])), labels[sample].astype(np.int32)

    return (
        Dataset.from_arrays(np.arange(len(shifts) * len(images)))
        .shuffle(seed=options.shuffle_seed)
        .repeat()
        .batch(options.batch_size, drop_remainder=True)
        .map(load)
    )


def eval_input_fn(params: Params) -> Dataset:
    """Return all test images once, in order; the last batch may be smaller."""
    options = params.eval_input
    images, labels = read_digits(options.data_dir, "t10k")
    batches = Dataset.from_arrays(images, labels).batch(options.batch_size)
    return batches.map(lambda pixels, digits: (scaled(pixels), digits.astype(np.int32)))


def read_digits(data_dir: str, prefix: str) -> tuple[np.ndarray, np.ndarray]:
    """Read images uint8 [N, 28, 28] and labels uint8 [N] from files with MNIST's names.

    A relative folder is searched in the working directory, then next to this file.

    Raises: DataError if the files are missing, damaged, or not such a set of images.
    """
    here = Path(data_dir)
    folder = here if here.is_dir() else Path(__file__).parent / data_dir
    path = idx.find(folder, f"{prefix}-images-idx3-ubyte")
    images = idx.read(path)
    labels = idx.read(idx.find(folder, f"{prefix}-labels-idx1-ubyte"))
    if images.shape[1:] != IMAGE_SHAPE or not len(images):
        raise DataError(f"{path}: expected images of 28 by 28 pixels, got {list(images.shape)}")
    if labels.shape != images.shape[:1]:
        raise DataError(f"{path}: {len(images)} images, but labels of shape {list(labels.shape)}")
    return images, labels


def shifts_up_to(pixels: int) -> np.ndarray:
    """Return all shifts by up to this many pixels, rows down and columns right, no shift first.

    Shapes: [S, 2]
    """
    steps = np.arange(-pixels, pixels + 1)
    shifts = np.stack(np.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2)
    return shifts[np.argsort(np.abs(shifts).sum(axis=1), kind="stable")]


def shifted(images: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Move each image cyclically; the margins of digits are blank.

    Shapes: images [B, 28, 28], shifts [B, 2] -> [B, 28, 28]
    """
    rows, columns = (
        (np.arange(size) - shifts[:, axis, None]) % size for axis, size in enumerate(IMAGE_SHAPE)
    )
    return images[np.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None]]


def scaled(images: np.ndarray) -> np.ndarray:
    """Scale pixels 0..255 to 0..1, float32."""
    return np.multiply(images, 1 / 255, dtype=np.float32)
