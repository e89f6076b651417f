"""The lines that were typed at the prompt, in a file."""

from contextlib import suppress

from prompt_toolkit.history import FileHistory


class LineHistory(FileHistory):
    """A file of lines; one that cannot be kept, on a full disk, is done all the same."""

    def store_string(self, string: str) -> None:
        """Keep a line."""
        with suppress(OSError):
            super().store_string(string)
