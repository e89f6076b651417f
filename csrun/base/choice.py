"""Click type of an option whose value is one of a fixed set of words."""

from collections.abc import Collection
from typing import Any

import click
from click.shell_completion import CompletionItem


def refusal(got: object, known: Collection[str]) -> str:
    """Message about an unknown word, with the nearest known one."""
    # msgspec is slow to import, and --help does not need it
    from csrun.base.typed_yaml import suggestion

    return f"must be one of {', '.join(known)}, got {got!r}{suggestion(got, known)}"


class Choice(click.Choice[str]):
    """Click type of a fixed set of words, with csrun's own error message."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return refusal(value, self.choices)

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """Return the words: click's own list has a line for each."""
        return f"Choose from {', '.join(self.choices)}"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the completions: the words as documented, or in lower case if the input is."""
        words = [str(each) for each in self.choices]
        if not self.case_sensitive and incomplete.islower():
            words = [word.lower() for word in words]
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]
