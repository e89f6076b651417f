"""Messages between the chief and each of its peers: traces, and the end of the run."""

import msgspec

Results = dict[str, float]


class TraceRing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Peer of the chief's machine → chief, with a descriptor: the ring of its trace."""


class ReadTrace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → peers whose ring it has not: send the trace so far."""


class Traced(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Reply to ReadTrace: a part of a process's spans; the last part is empty."""

    part: bytes


class Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Chief → all: this run is over; every task's estimator returns `results`."""

    results: Results
