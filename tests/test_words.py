"""The list of csrun's messages has those that a user can see, and no others."""

import re

from support.messages import messages_of


def test_messages_are_found() -> None:
    text = """
    LINES = {"a": "lines of a table, which are shown"}
    def f(x, log):
        "A docstring, which nobody is shown."
        why = f"shown by the name {x}"
        log.warning("logged: %s", why)
        print(f"{x}: printed" if x else "again")
        pattern = r"some words in\\sa pattern"
        raise ValueError("x failed: " + why)

    @click.command()
    def g(): "A command."
    """
    assert list(messages_of(re.sub(r"^    ", "", text, flags=re.MULTILINE))) == [
        (2, "lines of a table, which are shown"),
        (5, "shown by the name {x}"),
        (6, "logged: %s"),
        (7, "{x}: printed"),
        (7, "again"),
        (9, "x failed:"),
        (12, "A command."),
    ]
