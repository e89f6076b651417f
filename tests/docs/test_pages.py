"""Commands of the pages with their options, links and paths exist."""

import re
import shlex
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
from support.fc_mnist import FOLDER
from support.pages import CHECKOUT, PAGES, README, blocks

from csrun.base.errors import UsageError
from csrun.cli.shell.command_loop import root as shell_commands

OURS = ("csrun_wse", "csrun_cpu", "cs_input_analyzer", "csctl", "csrun")
SCRIPTS = CHECKOUT / "scripts"
INTERPRETERS = ("python-pt", "python-ws", "python")
#: Programs of others, and csrun's own interpreter, whose options are not looked at.
FOREIGN = {
    ".venv/bin/pytest", "cat", "cd", "git", "pip", "printf", "python", "python-pt", "python-ws",
    "python3",
    "rm", "source", "ssh", "tensorboard",
}  # fmt: skip
PLACEHOLDERS = {"ID": "1", "JOB": "1", "N": "1", "TEMPLATE": "image"}
ROOMS = "csrun|docs|scripts|tests|site_configs|reference_models"


def shown_commands(page: Path) -> Iterator[list[str]]:
    """Words of each command line of a page, after `$` in a block or alone between backticks."""
    text = page.read_text()
    lines = [line for block in blocks(text) for line in block.splitlines()]
    found = [line[2:] for line in lines if line.startswith("$ ")]
    found += [line for line in lines if line.split(" ")[0] in OURS]  # what they say has a colon
    found += re.findall(rf"`((?:{'|'.join(OURS)}|cs) [^`]+)`", text)
    for line in found:
        for command in re.split(r" [|<>] ", line):
            yield shlex.split(command.replace("…", ""), comments=True)


def check(words: list[str]) -> None:
    """Raise click.UsageError or UsageError for an invalid command."""
    name, *arguments = words
    if name == "cs":
        check_options(command_of("cs"), arguments)
    elif name in OURS:
        check_options(command_of(name), arguments)
    elif name in INTERPRETERS and "run.py" in arguments:
        check_run_py(arguments[arguments.index("run.py") + 1 :])
    elif name.removeprefix("./").startswith("scripts/"):
        assert (CHECKOUT / name).exists(), name
        assert set(arguments) <= names_of_script(SCRIPTS / Path(name).name), words
    elif name not in FOREIGN:
        raise click.UsageError(f"no such command: {name}")


def command_of(name: str) -> click.Command:
    found: click.Command = getattr(import_module(f"csrun.cli.{name}"), name)
    return found


def check_options(command: click.Command, words: list[str]) -> None:
    """Check the options of a command, of its subcommand, and of the command that it runs."""
    settings = {**command.context_settings, "obj": None}
    try:
        context = command.make_context(
            command.name, [PLACEHOLDERS.get(w, w) for w in words], **settings
        )
    except (click.exceptions.Exit, click.exceptions.NoArgsIsHelpError):
        return  # --help, or a group that is spoken of
    if isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        _, subcommand, rest = command.resolve_command(context, rest)
        assert subcommand is not None
        check_options(subcommand, rest)
    elif given := list(context.params.get("command") or ()):
        if command.name == "cs":
            check_options(shell_commands, given)
        elif given[0] in INTERPRETERS:
            check(given)


def check_run_py(arguments: list[str]) -> None:
    """Check a command line of the working directory's run.py, with its own keys and defaults."""
    from csrun.params.command_line import parse

    folder = Path.cwd()
    sys.path.insert(0, str(folder))
    try:
        kind = import_module("params").Params
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("params", None)
    (default,) = re.findall(r'"(params\w*\.yaml)"', (folder / "run.py").read_text())
    parse(kind, folder / "configs" / default, arguments)


def names_of_script(script: Path) -> set[str]:
    """Arguments of a script: for benchmarks, the files of tests/bench."""
    if script.name == "bench":
        folder = CHECKOUT / "tests" / "bench"
        packages = {path.parent.name for path in folder.glob("*/__main__.py")}
        return {path.stem for path in folder.glob("*.py")} | packages
    return set(re.findall(r"--[a-z-]+", script.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_is_one_that_can_be_given(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(page.parent if (page.parent / "run.py").exists() else FOLDER)
    for words in shown_commands(page):
        check(words)


@pytest.mark.parametrize(
    "line",
    [
        "csrun_wsx python-ws run.py",
        "csrun_wse --total-node 4 python-ws run.py",
        "csrun_wse --total-nodes four python-ws run.py",
        "csrun_wse python-ws run.py --mode fly",
        "csrun_wse python-ws run.py --modus train",
        "csctl get jobs --everything",
        "csctl fetch jobs",
        "cs config execmode shaw",
        "cs --sistem cs2-02 system status",
        "./scripts/nothing",
        "scripts/test --sluggish",
    ],
)
def test_a_command_that_cannot_be_given_is_seen(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    with pytest.raises((click.UsageError, UsageError, AssertionError)):
        check(shlex.split(line))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_and_every_path_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]*)", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    paths = re.findall(rf"`\.?/?((?:{ROOMS})/[^`\s*<{{…]*)`", text)
    missing += [path for path in paths if not (CHECKOUT / path).exists()]
    assert not missing


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_anchor_is_a_heading(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]*)#([^)]*)\)", page.read_text())
    missing = [
        f"{to}#{anchor}"
        for to, anchor in links
        if anchor not in anchors(page.parent / to if to else page)
    ]
    assert not missing


def test_the_readme_leads_to_every_page() -> None:
    text = README.read_text()
    pages = {str(page.relative_to(CHECKOUT)) for page in PAGES if page.parent == CHECKOUT / "docs"}
    assert not {page for page in pages if f"({page})" not in text}


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 130
