"""A run's command line, as a task knows it and as model_dir keeps it."""

import msgspec


class RunCommand(msgspec.Struct, frozen=True):
    """A command line, and the working directory that it was given in."""

    words: tuple[str, ...]
    directory: str
