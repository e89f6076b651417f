"""Makes the token files of language models from text: train.bin and validation.bin.

python prepare_data.py                       the Python standard library's own sources, byte by byte
python prepare_data.py book.txt notes/       files, and those of folders
python prepare_data.py --tokenizer t.json    in the words of a Hugging Face tokenizers file
"""

import argparse
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from csrun.data import DataError
from csrun.data.formats import write_tokens

BYTES = 256  # vocabulary of a text byte by byte
EVERY = 10  # of the files, one in so many is for validation

Encode = Callable[[bytes], np.ndarray]


def main() -> None:
    """Read the options, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("texts", nargs="*", type=Path, help="text files and folders of them")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizers file; bytes without one")
    parser.add_argument("--suffix", default=".py", help="of the files in folders (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data")
    options = parser.parse_args()
    encode, vocabulary = tokenizer(options.tokenizer)
    places = options.texts or [standard_library()]
    if missing := [str(place) for place in places if not place.exists()]:
        sys.exit(f"error: there is no {', no '.join(missing)}")
    files = list(found(places, options.suffix))
    if len(files) < EVERY:
        sys.exit(f"error: {len(files)} files found; {EVERY} are needed, one of them for validation")
    options.out.mkdir(parents=True, exist_ok=True)
    parts = {
        "train": [file for at, file in enumerate(files) if at % EVERY],
        "validation": files[::EVERY],
    }
    for name, part in parts.items():
        path = options.out / f"{name}.bin"
        try:
            count = write_tokens(path, pieces(part, encode), vocabulary)
        except (OSError, DataError) as error:
            sys.exit(f"error: {error}")
        print(f"{path}: {count:,} tokens of {vocabulary:,}, from {len(part):,} files")


def standard_library() -> Path:
    """Where Python's own sources are."""
    return Path(sysconfig.get_paths()["stdlib"])


def found(places: Sequence[Path], suffix: str) -> Iterator[Path]:
    """Files, and those of folders in the order of their names, tests and packages left out."""
    for place in places:
        if place.is_dir():
            for path in sorted(place.rglob(f"*{suffix}")):
                if not {"site-packages", "test", "tests"} & set(path.relative_to(place).parts):
                    yield path
        else:
            yield place


def tokenizer(path: Path | None) -> tuple[Encode, int]:
    """What makes ids of a text, and how many there are."""
    if path is None:
        return lambda text: np.frombuffer(text, np.uint8), BYTES
    try:
        from tokenizers import Tokenizer  # type: ignore[import-not-found]
    except ImportError:
        sys.exit("error: --tokenizer needs the package tokenizers: pip install tokenizers")
    try:
        words = Tokenizer.from_file(str(path))
    except Exception as error:  # whatever the package raises is about this file
        sys.exit(f"error: {path}: no tokenizers file: {error}")

    def encode(text: bytes) -> np.ndarray:
        return np.array(words.encode(text.decode(errors="replace")).ids, np.int64)

    return encode, words.get_vocab_size()


def pieces(files: Sequence[Path], encode: Encode) -> Iterator[np.ndarray]:
    """The ids of each file; how far this is shows on a terminal."""
    for number, path in enumerate(files, 1):
        if sys.stderr.isatty():
            print(f"\r{number} of {len(files)} files", end="", file=sys.stderr)
        yield encode(path.read_bytes())
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)


if __name__ == "__main__":
    main()
