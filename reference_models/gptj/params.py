"""Params file of GPT-J: sections, keys and their types."""

from typing import Annotated

import msgspec

from csrun import nn
from csrun.params import RunConfig

Positive = Annotated[int, msgspec.Meta(ge=1)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Rate = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class TrainInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Training text: a file of token ids."""

    file: str
    batch_size: Positive
    shuffle_seed: Seed = 1


class EvalInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Validation text: a file of token ids."""

    file: str
    batch_size: Positive


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sizes of the network.

    dropout: of embeddings and block outputs. attention_dropout: of attention weights.

    rotary_dim: number of values of each head, of hidden_size / num_heads, with rotary position.
    """

    vocabulary: Positive
    hidden_size: Positive
    num_hidden_layers: Positive
    num_heads: Positive
    rotary_dim: Positive
    sequence_length: Positive
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Params file of the model."""

    train_input: TrainInput
    eval_input: EvalInput
    model: Model
    optimizer: nn.Optimizer
    runconfig: RunConfig
