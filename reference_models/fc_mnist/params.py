"""Params file of fc_mnist: sections, keys and their types."""

from typing import Annotated

import msgspec

from csrun import nn
from csrun.params import RunConfig

Positive = Annotated[int, msgspec.Meta(ge=1)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Sizes = Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)]


class TrainInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Training images and batches.

    shift_images: also train on each image moved by one pixel up, down, left and right.
    """

    data_dir: str
    batch_size: Positive
    shuffle_seed: Seed = 1
    shift_images: bool = True


class EvalInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Test images."""

    data_dir: str
    batch_size: Positive


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Network: units of each hidden layer."""

    hidden_sizes: Sizes


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Params file of the model."""

    train_input: TrainInput
    eval_input: EvalInput
    model: Model
    optimizer: nn.Optimizer
    runconfig: RunConfig
