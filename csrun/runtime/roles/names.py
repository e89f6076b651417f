"""The names by which the roles join a run."""

MEMORYX = "memoryx"


def streamer_name(rank: int) -> str:
    """The streamer of a rank."""
    return f"streamer {rank}"


def wafer_name(system: str) -> str:
    """The wafer of a CS system."""
    return f"wafer {system}"
