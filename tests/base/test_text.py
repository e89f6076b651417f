"""Control sequences in text, escaped for terminals."""

import pytest

from csrun.base.safe_text import printable, printable_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, é, 漢, …", "plain, é, 漢, …"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x1b]52;c;YQ==\x07", r"\x1b]52;c;YQ==\x07"),
        ("\x9b2J", r"\x9b2J"),
        ("right\u202eto left", r"right\u202eto left"),
        ("\udcff", r"\udcff"),
        ("over\rwritten", r"over\rwritten"),
    ],
)
def test_what_a_terminal_would_obey_or_hide_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == printable_line(text) == shown


def test_line_ends_are_kept_in_a_message_and_not_in_a_cell() -> None:
    assert printable("a\n\tb\x07") == "a\n\tb\\x07"
    assert printable_line("a\nb") == r"a\nb"
