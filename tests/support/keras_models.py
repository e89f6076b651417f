"""Small Keras models with their losses, optimizers and metrics, and batches for them."""

import os
import random

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="Keras models are tested with Keras 3")

L = keras.layers
STEPS, BATCH, CLASSES = 5, 16, 10


def seed(number):
    """Seed the weights of the next model; `keras.utils.set_random_seed` imports TensorFlow, too."""
    random.seed(number)


def compiled(model, optimizer=None):
    model.compile(
        optimizer=optimizer or keras.optimizers.SGD(0.05, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def mlp(optimizer=None):
    """Dense layers, with a regularized kernel."""
    seed(1)
    return compiled(
        keras.Sequential(
            [
                keras.Input((20,)),
                L.Dense(32, "relu", kernel_regularizer=keras.regularizers.L2(0.01)),
                L.Dense(CLASSES),
            ]
        ),
        optimizer,
    )


def cnn():
    """Channels last, as Keras has them."""
    seed(2)
    return compiled(
        keras.Sequential(
            [
                keras.Input((12, 12, 1)),
                L.Conv2D(4, 3, activation="relu"),
                L.MaxPooling2D(),
                L.Flatten(),
                L.Dense(CLASSES),
            ]
        )
    )


def batch_norm():
    seed(3)
    layers = [keras.Input((20,)), L.Dense(32, use_bias=False), L.BatchNormalization(momentum=0.9)]
    return compiled(keras.Sequential([*layers, L.ReLU(), L.Dense(CLASSES)]))


def attention():
    """Token embeddings, attention and layer norm of a functional model."""
    seed(4)
    ids = keras.Input((8,), dtype="int32")
    x = L.Embedding(30, 16)(ids)
    x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 8)(x, x))
    x = L.Dense(32, "gelu")(x)
    out = L.Dense(CLASSES)(L.GlobalAveragePooling1D()(x))
    return compiled(keras.Model(ids, out), keras.optimizers.Adam(0.01))


def lstm():
    seed(5)
    layers = [keras.Input((7, 5)), L.LSTM(8), L.Dense(CLASSES)]
    return compiled(keras.Sequential(layers), keras.optimizers.Adam(0.01, global_clipnorm=0.5))


class Penalty(L.Layer):
    """Layer with its own loss, a mean of its inputs over batches, and their count."""

    def build(self, shape):
        self.mean = self.add_weight(shape[1:], "zeros", trainable=False, name="mean")
        self.count = self.add_weight((), "zeros", trainable=False, name="count")

    def call(self, x, training=None):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(x, axis=0))
            self.count.assign(self.count + 1)
        return x


def penalties():
    """Model with losses of weights, of activations, and of a layer."""
    seed(8)
    regularizers = keras.regularizers
    first = L.Dense(
        32,
        "relu",
        kernel_regularizer=regularizers.OrthogonalRegularizer(0.01),
        bias_regularizer="l1",
        activity_regularizer=regularizers.L2(0.01),
    )
    last = L.Dense(CLASSES, kernel_regularizer=regularizers.L1L2(0.01, 0.02))
    return compiled(keras.Sequential([keras.Input((20,)), first, Penalty(), last]))


class TwoInputs(keras.Model):
    """Subclassed model with two inputs."""

    def __init__(self):
        super().__init__()
        self.left, self.right = L.Dense(8, "tanh"), L.Dense(8, "tanh")
        self.out = L.Dense(CLASSES)

    def call(self, inputs, training=None):
        left, right = inputs
        return self.out(self.left(left) * self.right(right))


def two_inputs():
    seed(6)
    model = TwoInputs()
    return compiled(model)


MODELS = {
    "mlp": mlp,
    "cnn": cnn,
    "batch norm": batch_norm,
    "penalties": penalties,
    "attention": attention,
    "lstm": lstm,
    "two inputs": two_inputs,
}
_SHAPES = {
    "mlp": (20,),
    "cnn": (12, 12, 1),
    "batch norm": (20,),
    "penalties": (20,),
    "lstm": (7, 5),
    "two inputs": (10,),
}


def batches(name, count=STEPS):
    """Features and labels."""
    random = np.random.default_rng(7)
    found = []
    for _ in range(count):
        if name == "attention":
            x = random.integers(0, 30, (BATCH, 8)).astype(np.int32)
        else:
            x = random.standard_normal((BATCH, *_SHAPES[name])).astype(np.float32)
        x = (x[:, :6], x[:, 6:]) if name == "two inputs" else x
        found.append((x, random.integers(0, CLASSES, BATCH)))
    return found
