"""Options of the interpreter, parsed as Python does."""

import subprocess
import sys
from pathlib import Path

import pytest

from csrun.base.python_options import split_options

OPTIONS = [
    (),
    ("-u",),
    ("-OOu",),
    ("-X", "dev"),
    ("-Xdev",),
    ("-uX", "faulthandler", "-B"),
    ("-W", "ignore", "-Wdefault"),
    ("--check-hash-based-pycs", "always"),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_script_is_the_word_that_python_takes_for_it(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    script = tmp_path / "run.py"
    script.write_text("import sys; print(sys.argv[1:])")
    words = (*options, str(script), "-u", "dev")
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    found = split_options(words)
    assert found == (options, (str(script), "-u", "dev"))
    assert done.stdout.strip() == str(list(found[1][1:]))


@pytest.mark.parametrize("rest", [("-m", "json.tool"), ("-c", "pass"), ("-", "x"), ()])
def test_a_module_code_or_nothing_ends_the_options(rest: tuple[str, ...]) -> None:
    assert split_options(("-u", *rest)) == (("-u",), rest)
