"""Params file of the BERT models: sections, keys and their types."""

from typing import Annotated

import msgspec

from csrun import nn
from csrun.params import RunConfig

Positive = Annotated[int, msgspec.Meta(ge=1)]
Token = Annotated[int, msgspec.Meta(ge=0)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Rate = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class SpecialTokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Ids of special tokens: padding, begin, end of a segment, mask."""

    pad: Token
    cls: Token
    sep: Token
    mask: Token


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Token file of the text, or one per class, and how samples are drawn.

    masked_share: share of tokens that are masked. short_share: share of samples with a random
    length; the others have the full length.
    """

    file: str | tuple[str, ...]
    batch_size: Positive
    masked_share: Share = 0.15
    short_share: Share = 0.1
    seed: Seed = 1


class TrainInput(Input, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Training text; each window begins `duplicates` samples, each with new random draws."""

    duplicates: Positive = 10
    shuffle_seed: Seed = 1


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sizes of the network.

    dropout: of embeddings and block outputs. attention_dropout: of attention weights.
    classes: number of classes of texts; without it the model is pre-trained.
    """

    vocabulary: Positive
    max_position_embeddings: Positive
    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Positive
    num_heads: Positive
    sequence_length: Annotated[int, msgspec.Meta(ge=8)]
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    classes: Annotated[int, msgspec.Meta(ge=2)] | None = None


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Params file of the model."""

    train_input: TrainInput
    eval_input: Input
    special_tokens: SpecialTokens
    model: Model
    optimizer: nn.Optimizer
    runconfig: RunConfig
