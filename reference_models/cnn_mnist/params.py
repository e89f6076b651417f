"""Params file of cnn_mnist: sections, keys and their types."""

from typing import Annotated

import msgspec

from csrun import nn
from csrun.params import RunConfig

Positive = Annotated[int, msgspec.Meta(ge=1)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Sizes = Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1, max_length=4)]
Pixels = Annotated[int, msgspec.Meta(ge=0, le=4)]


class TrainInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Training images and batches.

    max_shift: also train on each image moved by up to this many pixels in each direction; 2 gives
    25 images per image.
    """

    data_dir: str
    batch_size: Positive
    shuffle_seed: Seed = 1
    max_shift: Pixels = 2


class EvalInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Test images."""

    data_dir: str
    batch_size: Positive


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The network: filters of each block, each of which halves the image; then a hidden layer.

    momentum: the share that a step has in the running statistics of batch normalization.
    """

    filters: Sizes
    hidden_size: Positive
    dropout: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    momentum: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Params file of the model."""

    train_input: TrainInput
    eval_input: EvalInput
    model: Model
    optimizer: nn.Optimizer
    runconfig: RunConfig
