"""Write the four IDX files of this folder from scikit-learn's copy of the UCI handwritten digits.

Each image of 8 by 8 pixels in 0..16 is scaled to 24 by 24 in 0..255 by bilinear interpolation
between pixel centres, and framed with two blank pixels to MNIST's 28 by 28. The 1,797 images are
shuffled with a fixed seed; the first 1,437 are the training set, the other 360 the test set. The
images do not depend on where this runs.

Run: pip install scikit-learn && python make_digits.py
"""

import gzip
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

FOLDER = Path(__file__).parent
SEED = 20220401
TRAIN_IMAGES = 1437
SOURCE_SIZE, SCALED_SIZE, FRAME = 8, 24, 2
SOURCE_WHITE, WHITE = 16, 255
IDX_UINT8 = 0x08


def interpolation(target: int, source: int) -> np.ndarray:
    """Return the matrix [target, source] of linear interpolation between pixel centres."""
    centres = (np.arange(target) + 0.5) * source / target - 0.5
    distance = np.abs(np.clip(centres, 0, source - 1)[:, None] - np.arange(source))
    return np.maximum(0.0, 1.0 - distance)


def scaled(images: np.ndarray) -> np.ndarray:
    """Scale images [N, 8, 8] in 0..16 to uint8 [N, 28, 28] in 0..255."""
    matrix = interpolation(SCALED_SIZE, SOURCE_SIZE)
    larger = np.rint(matrix @ images @ matrix.T * (WHITE / SOURCE_WHITE)).astype(np.uint8)
    return np.pad(larger, ((0, 0), (FRAME, FRAME), (FRAME, FRAME)))


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write a uint8 array as a gzip IDX file without a time stamp."""
    header = bytes((0, 0, IDX_UINT8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + array.tobytes(), 9, mtime=0))


def main() -> None:
    """Write the training and test sets."""
    digits = load_digits()
    order = np.random.Generator(np.random.Philox(key=SEED)).permutation(len(digits.target))
    images, labels = scaled(digits.images[order]), digits.target[order].astype(np.uint8)
    for prefix, part in (("train", slice(TRAIN_IMAGES)), ("t10k", slice(TRAIN_IMAGES, None))):
        write_idx(FOLDER / f"{prefix}-images-idx3-ubyte.gz", images[part])
        write_idx(FOLDER / f"{prefix}-labels-idx1-ubyte.gz", labels[part])


if __name__ == "__main__":
    main()
