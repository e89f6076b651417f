"""One-shot commands of the admin shell: output, refusals, and exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.sites import SHIPPED

from csrun.base.mode import ExecutionMode
from csrun.cli.cs import cs
from csrun.cli.frame import run
from csrun.context import site_state_dir
from csrun.site import load
from csrun.system import acquire

SITE = load("local")
SYSTEM = SITE.systems[0]
pytestmark = pytest.mark.usefixtures("state")
Output = pytest.CaptureFixture[str]


def do(line: str) -> int:
    return run(cs, line.split())


def test_the_configured_mode_is_one_line(capsys: Output) -> None:
    assert do("config execmode show") == 0
    assert capsys.readouterr().out == "Configured Execution Mode : PIPELINED\n"


def test_the_same_for_a_program(capsys: Output) -> None:
    assert do("config execmode show --output-format json") == 0
    assert json.loads(capsys.readouterr().out) == {"configured_execution_mode": "PIPELINED"}


def test_a_system_changes_its_mode_and_no_other_does(capsys: Output) -> None:
    lines = ["system standby --yes", "config execmode setup --mode weight_streaming"]
    for line in [*lines, "system activate", "config execmode show"]:
        assert do(line) == 0
    assert capsys.readouterr().out.splitlines() == [
        "cs2-01 is STANDBY in PIPELINED mode",
        "Selected execution mode configuration: ✔ Weight Streaming",
        "cs2-01 is ACTIVE in WEIGHT_STREAMING mode",
        "Configured Execution Mode : WEIGHT_STREAMING",
    ]
    assert do("--system cs2-02 system standby --yes") == 0
    for name, power in (("cs2-01", "ACTIVE"), ("cs2-02", "STANDBY")):
        capsys.readouterr()
        assert do(f"system status --system {name} --output-format json") == 0
        assert json.loads(capsys.readouterr().out)["power"] == power


MISTAKES = [
    ("confg execmode show", "No such command 'confg'. Did you mean 'config'"),
    ("system standbye --yes", "No such command 'standbye'. Did you mean 'standby'"),
    ("reload", "No such command 'reload'. Known: config, system, software, session"),
    ("config", "'config' needs a subcommand: execmode"),
    ("config execmode setup --mode FAST", "must be one of PIPELINED, WEIGHT_STREAMING, got 'FAST'"),
    ("config execmode setup --mode PIPELINED", "not possible while the system is ACTIVE; possible"),
    (
        "config execmode setup pipelined",
        "unexpected argument 'pipelined': write 'setup --mode pipelined'",
    ),
    ("config execmode setup", "'config execmode setup' is not possible while the system is ACTIVE"),
    ("system activate", "'system activate' is not possible while the system is ACTIVE"),
    ("--system cs2-2 system show", "'cs2-2': did you mean cs2-02? site local has cs2-01, cs2-02"),
    ("system show --system ours", "system 'ours': site local has cs2-01, cs2-02"),
    ("system show --outputformat json", "No such option '--outputformat'. Did you mean"),
    ("session cancel 7", "job 7 has no session on cs2-01; it has: none"),
    ("session cancel seven", "must be a whole number >= 1, got 'seven'"),
    ("--site nowhere system show", "nowhere"),
]


@pytest.mark.parametrize(("line", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(line: str, message: str, capsys: Output) -> None:
    assert do(line) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("cs: error: ")
    assert len(err.splitlines()) == 1
    assert message in err


def test_a_job_keeps_its_system(capsys: Output) -> None:
    with acquire(SITE, SYSTEM, ExecutionMode.PIPELINED, "job 7"):
        for line in ("system standby --yes", "system reboot --yes"):
            assert do(line) == 1
            assert "while job 7 (process" in capsys.readouterr().err
    assert do("system reboot --yes") == 0


def test_what_a_system_is(capsys: Output) -> None:
    """Published figures: 757 x 996 cores of 48 KB, 12 links of 100 Gbit/s, 1.1 GHz."""
    assert do("system show --output-format json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["fabric"] == "757 x 996"
    assert shown["sram_bytes"] == 745_500 * 49_152
    assert (shown["clock_hz"], shown["io_gbit_per_s"]) == (1_100_000_000, 1200)
    assert do("system show") == 0
    assert "I/O          : 1,200 Gbit/s" in capsys.readouterr().out


def test_the_software_that_is_installed(capsys: Output) -> None:
    import numpy

    assert do("software show --output-format json") == 0
    versions = {row["software"]: row["version"] for row in json.loads(capsys.readouterr().out)}
    assert versions["numpy"] == numpy.__version__
    assert versions["python"] == sys.version.split()[0]


def slow_site(folder: Path, boot_s: float) -> str:
    site = yaml.safe_load(SHIPPED.read_text())
    for system in site["systems"]:
        system["boot_s"] = boot_s
    path = folder / "slow.yaml"
    path.write_text(yaml.safe_dump(site))
    return str(path)


def test_a_boot_is_waited_for_unless_told_otherwise(tmp_path: Path, capsys: Output) -> None:
    assert do(f"--site {slow_site(tmp_path, 0.3)} system reboot --yes") == 0
    out, err = capsys.readouterr()
    assert out == "cs2-01 is ACTIVE in PIPELINED mode\n"
    assert err == "cs2-01 is booting into PIPELINED mode\n"
    site = slow_site(tmp_path, 1000)
    assert do(f"--site {site} system reboot --yes --no-wait") == 0
    assert capsys.readouterr().out == "cs2-01 is BOOTING in PIPELINED mode\n"
    assert do(f"--site {site} system standby --yes") == 2
    assert "BOOTING; wait until it is ACTIVE" in capsys.readouterr().err
    assert do(f"--site {site} system status --output-format json") == 0
    assert 900 < json.loads(capsys.readouterr().out)["boot_left_s"] <= 1000


def piped(text: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "csrun.cli.cs", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)


def test_commands_in_a_pipe_answer_their_questions_themselves() -> None:
    done = piped(
        "# to weight streaming\nsystem standby\nwhat?\nyes\n\nconfig execmode setup\n"
        "Weight Streaming\nsystem activate\nconfig execmode show\nexit\nno such command\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    question = "This puts the system in standby. Do you want to proceed? (yes / no) "
    assert done.stdout.splitlines() == [
        question,
        "Please answer yes or no.",
        question,
        "cs2-01 is STANDBY in PIPELINED mode",
        "Select execution mode configuration: [PIPELINED, WEIGHT_STREAMING] ",
        "Selected execution mode configuration: ✔ Weight Streaming",
        "cs2-01 is ACTIVE in WEIGHT_STREAMING mode",
        "Configured Execution Mode : WEIGHT_STREAMING",
    ]


def test_a_character_that_the_output_cannot_say_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    done = piped("system standby --yes\nconfig execmode setup --mode PIPELINED\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1] == "Selected execution mode configuration: ? Pipelined"


def test_help_lists_the_commands_and_explains_one(capsys: Output) -> None:
    assert do("help") == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in listed] == [
        *("config execmode show", "config execmode setup"),
        *(f"system {word}" for word in ("show", "status", "standby", "activate", "reboot")),
        *("software show", "session list", "session cancel", "telemetry", "help", "exit"),
    ]
    assert do("help system standby") == 0
    assert "Usage: cs system standby [OPTIONS]" in capsys.readouterr().out
    assert do("help system stanby") == 2
    assert "Did you mean 'standby'" in capsys.readouterr().err


HEAVY = ("prompt_toolkit", "rich", "numpy", "logging", "importlib.metadata")
LOADED = f"""
import sys
from csrun.cli.cs import cs
from csrun.cli.frame import run
assert run(cs, sys.argv[1:]) == 0
print([name for name in {HEAVY} if name in sys.modules])
"""


def test_a_one_shot_command_imports_nothing_heavy() -> None:
    command = [sys.executable, "-c", LOADED, "config", "execmode", "show"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["Configured Execution Mode : PIPELINED", "[]"]


FAILING = [
    ("system activate\nsystem standby --yes\n", 2, "system activate: 'system activate' is not"),
    ("system standby\nno\nsystem standby --yes\n", 1, "not confirmed: cs2-01 is unchanged"),
    ("system standby\n", 1, "no answer, standard input ended: give --yes"),
    ("'system standby\n", 2, "no closing quotation: close the quote"),
]


@pytest.mark.parametrize(("text", "code", "message"), FAILING)
def test_a_pipe_ends_at_its_first_failure(text: str, code: int, message: str) -> None:
    done = piped(text)
    assert done.returncode == code
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert piped("", "config", "execmode", "show").returncode == 0
    assert '"ACTIVE"' in piped("", "system", "status", "--output-format", "json").stdout


def test_a_damaged_state_is_said_once_and_the_command_done() -> None:
    assert piped("system standby --yes\n").returncode == 0
    (path,) = (site_state_dir("local") / "systems").glob("*.json")
    path.write_bytes(path.read_bytes()[:10])
    done = piped("", "system", "status", "--output-format", "json")
    assert done.returncode == 0
    assert str(path) in done.stderr
    assert json.loads(done.stdout)["power"] == "ACTIVE"
    assert piped("", "config", "execmode", "show").stderr == ""
