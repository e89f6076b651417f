"""Messages about SwarmX: its relays, and their connections to MemoryX."""

import msgspec

from csrun.base.run_config import TraceSteps


class RelayWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → SwarmX: relay between these children and each MemoryX task, or the parent if given.

    children: names in the order of summation of the gradients, which have this precision.
    """

    children: tuple[str, ...]
    parent: str | None
    memoryx: tuple[str, ...]
    precision: str
    trace_steps: TraceSteps | None = None


class RelayReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """SwarmX → chief: its neighbours may connect."""


class JoinSwarmX(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → MemoryX on another machine: this SwarmX task sends the requests of all wafers."""

    task: str
    me: str
