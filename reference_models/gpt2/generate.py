"""Continue a text with a trained GPT, token by token.

python generate.py --model_dir model_dir --prompt "def main(" --temperature 0.8 --top_k 40
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from model import EPSILON
from params import Model, Params
from safetensors.numpy import load_file

from csrun.params import load

Weights = dict[str, np.ndarray]
HALF = "\N{REPLACEMENT CHARACTER}"  # end of an incomplete character


@dataclass
class Cache:
    """Key-value cache of each block.

    Shapes: each [H, positions, E], grown at its end
    """

    keys: dict[int, np.ndarray] = field(default_factory=dict)
    values: dict[int, np.ndarray] = field(default_factory=dict)
    length: int = 0

    def extend(self, block: int, keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, ...]:
        """Append the keys and values of new positions to those of a block; return all."""
        if block in self.keys:
            keys = np.concatenate([self.keys[block], keys], axis=1)
            values = np.concatenate([self.values[block], values], axis=1)
        self.keys[block], self.values[block] = keys, values
        return keys, values


def logits_of(weights: Weights, model: Model, tokens: np.ndarray, cache: Cache) -> np.ndarray:
    """Return the logits of the next token after these, which follow those in the cache.

    Shapes: tokens [T] -> [V]
    Raises: ValueError for more tokens than the model has positions
    """
    first, cache.length = cache.length, cache.length + len(tokens)
    if cache.length > model.max_position_embeddings:
        raise ValueError(f"the model has {model.max_position_embeddings} positions")
    x = weights["wte/embeddings"][tokens] + weights["wpe/embeddings"][first : cache.length]
    for number in range(model.num_hidden_layers):
        x = x + attention(weights, model, number, norm(weights, f"h/{number}/ln_1", x), cache)
        h = norm(weights, f"h/{number}/ln_2", x)
        h = gelu(dense(weights, f"h/{number}/mlp/up", h))
        x = x + dense(weights, f"h/{number}/mlp/down", h)
    return norm(weights, "ln_f", x[-1]) @ weights["wte/embeddings"].T


def attention(
    weights: Weights, model: Model, block: int, x: np.ndarray, cache: Cache
) -> np.ndarray:
    """Shapes: x [T, D] -> [T, D]"""
    joined = dense(weights, f"h/{block}/attn/qkv", x)
    split = joined.reshape(len(x), 3, model.num_heads, -1).transpose(1, 2, 0, 3)
    keys, values = cache.extend(block, split[1], split[2])
    scores = split[0] @ keys.transpose(0, 2, 1) / sqrt(keys.shape[2])
    later = np.tri(len(x), keys.shape[1], keys.shape[1] - len(x)) == 0
    scores = np.where(later, -np.inf, scores)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    attended = scores / scores.sum(axis=-1, keepdims=True) @ values  # [H, T, E]
    return dense(weights, f"h/{block}/attn/out", attended.transpose(1, 0, 2).reshape(x.shape))


def dense(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]


def norm(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    normal = centred / np.sqrt(variance + EPSILON)
    return normal * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (0.5 + 0.5 * np.tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))


def chosen(
    logits: np.ndarray,
    random: np.random.Generator,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> int:
    """Sample a token; at temperature 0 return the most likely one.

    top_k: number of most likely tokens to sample from. top_p: sample from the smallest set of most
    likely tokens with at least this total probability.

    Source: Holtzman et al. 2020, The Curious Case of Neural Text Degeneration, sections 3.1, 4.3
    """
    if not temperature:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")
    scaled = (logits[order] - logits[order[0]]).astype(np.float64) / temperature
    share = np.exp(scaled) / np.exp(scaled).sum()
    kept = np.cumsum(share) - share < top_p
    if top_k:
        kept[top_k:] = False
    return int(order[random.choice(len(order), p=share * kept / (share * kept).sum())])


def generated(
    weights: Weights, model: Model, prompt: np.ndarray, options: argparse.Namespace
) -> Iterator[int]:
    """Yield the next tokens; at the last position the context is cut to its second half.

    Shapes: prompt [T], T >= 1
    """
    random, cache, text = np.random.default_rng(options.seed), Cache(), prompt.tolist()
    most = min(model.max_position_embeddings, model.sequence_length)  # positions that were trained
    fresh = text[-most:]
    for _ in range(options.tokens):
        if cache.length + len(fresh) > most:
            cache, fresh = Cache(), text[-most // 2 :]
        logits = logits_of(weights, model, np.array(fresh), cache)
        token = chosen(logits, random, options.temperature, options.top_k, options.top_p)
        text.append(token)
        fresh = [token]
        yield token


def weights_in(model_dir: Path) -> Weights:
    """Return the weights of the newest checkpoint."""
    found = {int(path.stem[11:]): path for path in model_dir.glob("model-ckpt-*.safetensors")}
    if not found:
        sys.exit(f"error: {model_dir}: no checkpoint; train first: run.py --mode train")
    return load_file(found[max(found)])


class Words:
    """Tokenizer: bytes, or a Hugging Face tokenizers file."""

    def __init__(self, path: Path | None) -> None:
        self._tokenizer: Any = None
        if path is not None:
            try:
                from tokenizers import Tokenizer  # type: ignore[import-not-found]
            except ImportError:
                sys.exit("error: --tokenizer needs the package tokenizers: pip install tokenizers")
            self._tokenizer = Tokenizer.from_file(str(path))

    def ids(self, text: str) -> np.ndarray:
        """Shapes: -> [T]"""
        if self._tokenizer is None:
            return np.frombuffer(text.encode(), np.uint8).astype(np.int64)
        return np.array(self._tokenizer.encode(text).ids)

    def text(self, ids: list[int]) -> str:
        """Decode ids; invalid bytes are shown as replacement characters."""
        if self._tokenizer is None:
            return bytes(ids).decode(errors="replace")
        return str(self._tokenizer.decode(ids))


def main() -> None:
    """Parse the options, and print the prompt and its continuation."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--params", type=Path, default=Path(__file__).parent / "configs" / "params.yaml")
    add(
        "--model_dir", type=Path, help="model_dir of the training; default: that of the params file"
    )
    add("--prompt", default="import ")
    add("--tokenizer", type=Path, help="tokenizers file of the data; default: bytes")
    add("--tokens", type=int, default=200, help="number of tokens to generate (%(default)s)")
    add("--seed", type=int, default=1)
    add("--temperature", type=float, default=0.8, help="0 selects the most likely (%(default)s)")
    add("--top_k", type=int, default=0, help="sample from the k most likely; 0: from all")
    add("--top_p", type=float, default=1.0, help="sample from the most likely with this total")
    options = parser.parse_args()
    params = load(Params, options.params)
    words = Words(options.tokenizer)
    prompt = words.ids(options.prompt)
    if not len(prompt) or prompt.max() >= params.model.vocabulary:
        sys.exit("error: --prompt must be text in the model's vocabulary")
    weights = weights_in(options.model_dir or Path(params.runconfig.model_dir))
    text, shown = prompt.tolist(), options.prompt
    print(shown, end="", flush=True)
    for token in generated(weights, params.model, prompt, options):
        text.append(token)
        so_far = words.text(text)
        if not so_far.endswith(HALF):
            print(so_far[len(shown) :], end="", flush=True)
            shown = so_far
    print()


if __name__ == "__main__":
    main()
