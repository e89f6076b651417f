"""Messages between the chief and a streamer: its batches, by data set and pass."""

import msgspec

from csrun.base.run_config import RunSettings
from csrun.executable import InputSpec


class StartStreaming(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → streamer: produce batches `first`, `first + stride`, … into a ring.

    parts: number of parts that each batch is divided into; each part counts as a batch.
    last: first batch that the run will not use (None: until the data end).
    source: number of the program that they are for.
    data: index of the data set in the streamer's list.
    readers: number of wafers, which all read every batch.
    """

    inputs: tuple[InputSpec, ...]
    first: int
    stride: int
    last: int | None
    ring_slots: int
    settings: RunSettings = RunSettings()
    source: int = 0
    data: int = 0
    readers: int = 1
    parts: int = 1


class RingReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Streamer → chief, with the ring's descriptors: memory, and for each reader filled and free.

    From another machine there are none, because the chief creates the ring.
    """

    slots: int


class Primed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Streamer → chief: the first batch is in the ring, or the data are exhausted.

    stages: names of the pipeline's stages; a slot refers to them by index.
    """

    stages: tuple[str, ...] = ()


class DataOrderPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → streamer: a part of the order of the next pass of a data set, by its index.

    All parts are sent before that pass begins.
    """

    data: int
    part: bytes


class BeginPass(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → streamer and wafer: continue a source with batch `first`, up to `last`.

    number: number of the pass, which is in the headers of its slots; others are discarded.
    first: the streamer's own first batch, or the run's.
    """

    source: int
    number: int
    first: int
    last: int | None


class EndStreaming(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → wafer and streamer: the batches of this source are no longer used."""

    source: int
