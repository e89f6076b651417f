"""The last words of a job that failed."""

from pathlib import Path

from csrun.launch.life.first_cause import describe_server_loss


def test_a_server_that_was_killed_is_named_with_its_signal(tmp_path: Path) -> None:
    assert describe_server_loss(-9, tmp_path).splitlines() == [
        "csrun_wse: error: the fork server was killed by signal 9 (SIGKILL); it held all tasks of "
        "the job, which ended with it",
        f"logs: {tmp_path}/logs",
    ]


def test_a_server_that_failed_has_said_why(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    lines = [f"frame {number}" for number in range(40)] + ["ImportError: no numpy"]
    (tmp_path / "logs" / "forkserver.log").write_text("\n".join(lines))
    said = describe_server_loss(1, tmp_path).splitlines()
    assert "the fork server ended with exit code 1" in said[0]
    assert said[-2:] == ["  ImportError: no numpy", f"logs: {tmp_path}/logs"]
    assert len(said) == 22  # the head, the last 20 lines, the place
