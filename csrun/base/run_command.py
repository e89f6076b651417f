"""Command line of a run, as stored in model_dir and known to each task."""

import msgspec


class RunCommand(msgspec.Struct, frozen=True):
    """Command line, and the working directory in which it was started."""

    words: tuple[str, ...]
    directory: str
