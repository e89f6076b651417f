"""Params file of keras_mnist: sections, keys and their types."""

from typing import Annotated

import msgspec

from csrun.params import RunConfig

Positive = Annotated[int, msgspec.Meta(ge=1)]


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Images and batches."""

    data_dir: str
    batch_size: Positive


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Network and learning rate."""

    filters: Positive
    dropout: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    learning_rate: Annotated[float, msgspec.Meta(gt=0)]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Params file of the model."""

    train_input: Input
    eval_input: Input
    model: Model
    runconfig: RunConfig
