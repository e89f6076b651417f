"""Synthetic files and batches in place of data sets that scripts download."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import MappingProxyType
from unittest.mock import MagicMock

import torch
from bench_recorder import STEPS
from torch.utils.data import Dataset

WORDS = [f"word{number}" for number in range(40)]


def write_words(folder: str, tokens: int) -> None:
    """Text files of a corpus, as word_language_model reads them."""
    generator = torch.Generator().manual_seed(2)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, count in (("train", tokens), ("valid", 200), ("test", 200)):
        chosen = torch.randint(0, len(WORDS), (count - 1,), generator=generator).tolist()
        text = " ".join(WORDS[number] for number in chosen)
        made = Path(folder) / f".{name}.{os.getpid()}"  # other tasks of the job read and write it
        made.write_text(text + "\n")
        made.replace(Path(folder) / f"{name}.txt")


class Rows(Dataset):
    """Samples of random floats, with a class each; as many as STEPS batches of `batch_size`."""

    def __init__(self, shape: tuple[int, ...], classes: int, batch_size: int) -> None:
        generator = torch.Generator().manual_seed(3)
        count = STEPS * batch_size
        self.data = torch.randn(count, *shape, generator=generator)
        self.targets = torch.randint(0, classes, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.data[index], self.targets[index]


def make_graph(sparse: bool, nodes: int = 1800) -> tuple[torch.Tensor, ...]:
    """Features [nodes, 16], labels [nodes] and a normalized adjacency matrix [nodes, nodes]."""
    generator = torch.Generator().manual_seed(4)
    features = torch.rand(nodes, 16, generator=generator)
    labels = torch.randint(0, 7, (nodes,), generator=generator)
    labels[0] = 6
    edges = (torch.rand(nodes, nodes, generator=generator) < 3 / nodes).float()
    adjacency = edges + torch.eye(nodes)
    adjacency = adjacency / adjacency.sum(1, keepdim=True)
    if sparse:
        return features.to_sparse(), labels, adjacency.to_sparse()
    return features, labels, adjacency


class Sentences(list):
    """Pairs of sentences of varying length, in place of Multi30k."""

    def __init__(self, split: str, language_pair: tuple[str, str]) -> None:
        generator = torch.Generator().manual_seed(len(split))
        count = STEPS * 4 if split == "train" else 16
        super().__init__((_sentence(generator), _sentence(generator)) for _ in range(count))


def _sentence(generator: torch.Generator) -> str:
    length = int(torch.randint(4, 9, (), generator=generator))
    chosen = torch.randint(0, len(WORDS), (length,), generator=generator).tolist()
    return " ".join(WORDS[number] for number in chosen)


def get_tokenizer(name: str, language: str) -> Callable[[str], list[str]]:
    return str.split


class _Vocabulary(dict):
    def __call__(self, words: list[str]) -> list[int]:
        return [self[word] for word in words]

    def set_default_index(self, index: int) -> None:
        """Do nothing: every word is known."""


def build_vocab_from_iterator(
    sentences: Iterable[list[str]], specials: list[str], **options: object
) -> _Vocabulary:
    """Numbers of words, after those of the special ones."""
    words = sorted({word for sentence in sentences for word in sentence} - set(specials))
    return _Vocabulary({word: number for number, word in enumerate([*specials, *words])})


class Carvana(Dataset):
    """Images with a mask each, for the U-Net."""

    mask_values = (0, 1)

    def __init__(self, batch_size: int) -> None:
        generator = torch.Generator().manual_seed(5)
        count = STEPS * batch_size // 2 * 5 // 4
        self.images = torch.rand(count, 3, 32, 32, generator=generator)
        self.masks = (self.images.mean(1) > 0.5).long()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"image": self.images[index], "mask": self.masks[index]}


no_wandb = MagicMock()


class Synth90kDataset(Dataset):
    """Images of a word's letters, with labels of varying length."""

    CHARS = "0123456789abcdefghijklmnopqrstuvwxyz"
    LABEL2CHAR = MappingProxyType(dict(enumerate(CHARS, 1)))

    def __init__(self, root_dir: str, mode: str, img_height: int, img_width: int) -> None:
        generator = torch.Generator().manual_seed(6)
        count = STEPS * 2 if mode == "train" else 8
        self.images = torch.randn(count, 1, img_height, img_width, generator=generator)
        self.lengths = torch.randint(3, 8, (count,), generator=generator)
        self.targets = torch.randint(1, len(self.CHARS) + 1, (count, 8), generator=generator)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        length = int(self.lengths[index])
        return self.images[index], self.targets[index, :length], torch.tensor([length])


def synth90k_collate_fn(batch: list[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
    images, targets, lengths = zip(*batch, strict=True)
    return torch.stack(images), torch.cat(targets), torch.cat(lengths)
