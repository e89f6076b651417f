"""Command line of a run, as stored in model_dir and known to each task."""

import msgspec


class RunCommand(msgspec.Struct, frozen=True):
    """Command line, and the working directory in which it was started."""

    argv: tuple[str, ...] = msgspec.field(name="words")  # name in files
    directory: str
