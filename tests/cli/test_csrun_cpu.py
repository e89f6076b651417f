"""csrun_cpu's command line: options, output, and refusals."""

import re
from pathlib import Path

import pytest

from csrun.cli.csrun_cpu import csrun_cpu
from csrun.cli.frame import run

SHIPPED = Path(__file__).parents[2] / "site_configs" / "local.yaml"
QUERIES = [
    ("--def_nodes", "4"),
    ("--def-tasks", "2"),
    ("--def_cpus", "16"),
    ("--def_mount_dirs", "/usr,/tmp"),
    ("--def_gres", "cs:1"),
    ("--def_gres_node", "node7"),
    ("--def-cpus --def-nodes --def-tasks", "16\n4\n2"),
]
MISTAKES = [
    ([], "no command given"),
    (["--mount-dirs", "/tmp,/no/such/folder", "true"], "/no/such/folder is not a folder"),
    (["--alloc-node", "maybe", "true"], "--alloc-node.*must be one of True, False, got 'maybe'"),
    (["--alloc_nodes", "True", "true"], "Did you mean.*--alloc-node"),
    (["no-such-command"], "no-such-command: command not found"),
    (["ls /tmp"], "'ls /tmp': command not found .*as separate words"),
    (["./no-such-file"], "./no-such-file: no such file"),
    (["/tmp"], "/tmp: is a folder"),
    (["python", "no_script.py"], "no_script.py: no such file in /"),
    ([__file__], "is not executable: run chmod .x on it, or run it with its interpreter"),
    (["--site", "nowhere", "true"], "nowhere"),
]


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(("query", "answer"), QUERIES)
def test_a_query_prints_the_sites_value(
    query: str, answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(
        SHIPPED.read_text() + "mount_dirs: [/usr, /tmp]\ngres: cs:1\ngres_node: node7\n"
    )
    assert run(csrun_cpu, ["--site", str(site), *query.split()]) == 0
    assert capsys.readouterr().out == f"{answer}\n"


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(csrun_cpu, arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("csrun_cpu: error: ")
    assert re.search(message, err)
    assert not (tmp_path / "state").exists()


@pytest.mark.usefixtures("state")
def test_a_folder_of_the_site_that_is_missing_is_named_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(SHIPPED.read_text() + "mount_dirs: [/no/such/folder]\n")
    assert run(csrun_cpu, ["--site", str(site), "true"]) == 2
    assert "site local: mount_dirs: /no/such/folder" in capsys.readouterr().err
