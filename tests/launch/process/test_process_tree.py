"""A process's name in `ps -f`."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path
from csrun.launch.process.process_tree import set_command_line
words = Path("/proc/self/cmdline")
most = len(words.read_bytes()) - 1
text = "n" * int(sys.argv[1])
set_command_line(text)
sys.exit(words.read_bytes().rstrip(b"\\0") != text[:most].encode())
"""


@pytest.mark.parametrize("length", [8, 5000])  # 5000 are more than the words of its start
def test_a_command_line_is_shown_as_it_is_set(length: int) -> None:
    assert subprocess.run([sys.executable, "-c", PROGRAM, str(length)]).returncode == 0
