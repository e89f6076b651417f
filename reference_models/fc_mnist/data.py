"""Input functions of fc_mnist: MNIST's files to batches of images and labels."""

from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from params import Params

from csrun.data import Batch, DataError, Dataset
from csrun.data.formats import idx

IMAGE_SHAPE = (28, 28)
SHIFTS = np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)])  # rows down, columns right


def train_input_fn(params: Params) -> Dataset:
    """Return endless shuffled batches: float32 [B, 28, 28] in 0..1, int32 [B]."""
    options = params.train_input
    images, labels = read_digits(options.data_dir, "train")
    shifted = shifts_of(images)
    variants = len(SHIFTS) if options.shift_images else 1

    def load(elements: np.ndarray) -> Batch:
        variant, sample = np.divmod(elements, len(images))
        down, right = SHIFTS[variant].T
        return scaled(shifted[sample, 1 - down, 1 - right]), labels[sample].astype(np.int32)

    return (
        Dataset.from_arrays(np.arange(variants * len(images)))
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

    Raises: DataError if the files are missing, damaged, or not such a set of images.
    """
    folder = find_folder(data_dir)
    path = idx.find(folder, f"{prefix}-images-idx3-ubyte")
    images = idx.read(path)
    labels = idx.read(idx.find(folder, f"{prefix}-labels-idx1-ubyte"))
    if not len(images):
        raise DataError(f"{path}: there are no images in it")
    if images.shape[1:] != IMAGE_SHAPE:
        raise DataError(f"{path}: images must be 28 by 28 pixels, got shape {list(images.shape)}")
    if labels.shape != images.shape[:1]:
        raise DataError(f"{path}: {len(images)} images, but labels of shape {list(labels.shape)}")
    return images, labels


def find_folder(data_dir: str) -> Path:
    """Find a relative folder in the working directory, or next to this file."""
    here = Path(data_dir)
    return here if here.is_dir() else Path(__file__).parent / data_dir


def shifts_of(images: np.ndarray) -> np.ndarray:
    """Return a view of each image moved cyclically by up to a pixel.

    Shapes: [N, 28, 28] -> [N, 3, 3, 28, 28], at 1 - rows down and 1 - columns right
    """
    wrapped = np.pad(images, ((0, 0), (1, 1), (1, 1)), mode="wrap")
    return sliding_window_view(wrapped, IMAGE_SHAPE, axis=(1, 2))


def scaled(images: np.ndarray) -> np.ndarray:
    """Scale pixels 0..255 to 0..1, float32."""
    return np.multiply(images, 1 / 255, dtype=np.float32)
