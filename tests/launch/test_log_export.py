"""Archives for bug reports."""

import json
import tarfile
from pathlib import Path

import pytest
from support.fc_mnist import FcMnist

SECRET_FILES = ("secret", "live.lock")


def test_an_archive_has_what_a_bug_report_needs_and_no_secret(tmp_path: Path) -> None:
    place = FcMnist(tmp_path)
    place.configure(runconfig__max_steps=4, model__hidden_sizes=[5])
    done = place.wse("--mode", "train", "--job-labels")
    assert done.returncode == 2  # an option of csrun_wse, before the script
    done = place.run(
        "--job-labels", "team=ml", "--total-nodes", "3", "python-ws", str(_run()), *place.own(())
    )
    assert done.returncode == 0, done.stderr
    number = max(int(path.stem) for path in (place.jobs.parent / "records").glob("*.json"))
    done = place.csctl("log-export", str(number), "-o", "report.tar.gz")
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / "report.tar.gz") as archive:
        found = {
            name.partition("/")[2]: archive.extractfile(name).read()  # type: ignore[union-attr]
            for name in archive.getnames()
        }
    assert {
        "record.json", "versions.json", "job.json", "logs/rank-00000.log",
        "logs/wafer-cs2-02.log", "compile/compile_report.txt", "compile/plan.json",
        "run/params_train.yaml", "run/performance.json",
    } <= found.keys()  # fmt: skip
    assert not {name for name in found if Path(name).name in SECRET_FILES}
    assert json.loads(found["record.json"])["labels"] == {"team": "ml"}
    assert b"Training finished" in found["logs/rank-00000.log"]
    assert "numpy" in json.loads(found["versions.json"])
    again = place.csctl("log-export", str(number), "-o", "report.tar.gz")
    assert (again.returncode, "already exists" in again.stderr) == (2, True)
    listed = place.csctl("get", "jobs", "-l", "team=ml").stdout
    assert listed.splitlines()[1].split()[:3] == [str(number), "run.py", "execute"]


def _run() -> Path:
    return Path(__file__).parents[2] / "reference_models" / "fc_mnist" / "run.py"


@pytest.mark.parametrize("words", [("log-export", "7"), ("label", "7", "a=1"), ("wait", "7")])
def test_a_job_that_there_is_not(words: tuple[str, ...], tmp_path: Path) -> None:
    done = FcMnist(tmp_path).csctl(*words)
    assert done.returncode == 2
    assert "job 7: no such job on site local" in done.stderr
