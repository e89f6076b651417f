"""Learns to continue generated sentences byte by byte; --mode eval reports the perplexity."""

import numpy as np

from csrun import nn
from csrun.data import Dataset
from csrun.estimator import CSEstimatorSpec
from csrun.params import main_for, run

LENGTH, WIDTH, VOCABULARY = 32, 32, 128  # bytes a window, features, ASCII
WORDS = (("the cat", "a dog", "one bird"), ("sees", "likes"), ("the house", "a tree", "the sea"))


def make_data(windows, seed):
    """Windows of text, int32 [N, LENGTH], and the byte that follows each."""
    random = np.random.default_rng(seed)
    sentences = (" ".join(random.choice(words) for words in WORDS) for _ in range(2 * windows))
    text = np.frombuffer((". ".join(sentences)).encode(), np.uint8).astype(np.int32)
    text = text[: windows * LENGTH + 1]
    return Dataset.from_arrays(text[:-1].reshape(-1, LENGTH), text[1:].reshape(-1, LENGTH))


def model_fn(features, labels, mode, params):
    x = nn.Embedding(VOCABULARY, WIDTH, name="bytes")(features)  # [B, T, D]
    x = nn.PositionEmbedding(LENGTH, name="positions")(x)
    attention = nn.MultiHeadAttention(num_heads=4, is_causal=True, name="attention")
    x = x + attention(nn.LayerNorm(name="norm_1")(x))
    hidden = nn.Dense(2 * WIDTH, activation="gelu", name="up")(nn.LayerNorm(name="norm_2")(x))
    x = x + nn.Dense(WIDTH, name="down")(hidden)
    logits = nn.Dense(VOCABULARY, name="out")(x)  # [B, T, V]
    if mode == nn.PREDICT:
        return CSEstimatorSpec(mode, predictions={"next_byte": nn.argmax(logits)})
    loss = nn.softmax_cross_entropy(logits, labels)
    if mode == nn.EVAL:
        return CSEstimatorSpec(mode, loss=loss, host_call=(metrics, [loss, labels]))
    return CSEstimatorSpec(mode, loss=loss, train_op=nn.Adam(0.005).minimize(loss))


def metrics(loss, labels):
    return {"perplexity": nn.metrics.perplexity(loss, labels)}


def train_input_fn(params):
    return make_data(2000, seed=1).shuffle(seed=1).repeat().batch(32)


def eval_input_fn(params):
    return make_data(200, seed=2).batch(32)


if __name__ == "__main__":
    main = main_for(model_fn, train_input_fn, eval_input_fn)
    run(main, default_params={"runconfig": {"max_steps": 300, "log_steps": 50}})
