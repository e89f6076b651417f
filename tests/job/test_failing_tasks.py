"""A run.py that ends early in some tasks: the job ends soon, with the right cause."""

import re

import pytest
from support.fc_mnist import FOLDER, TWO_STREAMERS, FcMnist

RUN_TEXT = (FOLDER / "run.py").read_text()
DATA_TEXT = (FOLDER / "data.py").read_text()
MAIN = 'if __name__ == "__main__":\n'
BY_RANK = 'import os, sys\n    rank = os.environ["SLURM_PROCID"]\n    '


def run_with(place: FcMnist, line: str) -> tuple[int, str, str]:
    """The job's exit code, output and errors when `main` begins with this line."""
    assert MAIN in RUN_TEXT
    script = place.copy(run=RUN_TEXT.replace(MAIN, f"{MAIN}    {BY_RANK}{line}\n"))
    done = place.run(*TWO_STREAMERS, "python-ws", script, *place.own(()))
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("rank", "named"),
    [
        (0, "rank 0 (chief) on node1"),
        (3, "rank 3 (streamer) on node3"),
    ],
)
def test_a_bug_in_one_task_is_named_with_its_traceback(
    place: FcMnist, rank: int, named: str
) -> None:
    code, _, err = run_with(place, f'assert rank != "{rank}", "odd"')
    assert code == 1
    assert f"csrun_wse: error: {named} ended with exit code 1\nTraceback (most" in err
    assert err.splitlines()[-2] == "AssertionError: odd"
    assert err.splitlines()[-1].endswith(f"/logs/rank-0000{rank}.log")
    assert err.count("Traceback") == 1


def test_a_bug_in_the_input_of_one_streamer_in_the_middle_of_a_training(place: FcMnist) -> None:
    """Its exit takes longer than its peers need to notice: the cause is found all the same."""
    where = "        variant, sample = np.divmod("
    assert where in DATA_TEXT
    bug = (
        "        import os\n"
        '        if os.environ["SLURM_PROCID"] == "2" and os.path.exists("model_dir/checkpoint"):\n'
        '            raise ValueError("a bad image")\n'
    )
    before, main = RUN_TEXT.split(MAIN)
    slow = f"{before}{MAIN}    try:\n    {main}    finally:\n        import time; time.sleep(2)\n"
    script = place.copy(data=DATA_TEXT.replace(where, bug + where), run=slow)
    place.configure(runconfig__max_steps=10**6)
    done = place.run(*TWO_STREAMERS, "python-ws", script, *place.own(()))
    assert done.returncode == 1
    assert "csrun_wse: error: rank 2 (streamer) on node3" in done.stderr
    lines = done.stderr.splitlines()
    where, numbers, log = lines[lines.index("ValueError: a bad image") + 1 :]
    assert re.fullmatch(r"input_fn: map load \(data.py:\d+\) failed at sample \d+", where)
    assert re.fullmatch(
        r"this streamer failed in "
        r"(batch \d+ after \d+ batches at \d+ batches/s|its first batch, \d+)",
        numbers,
    )
    assert log.endswith("/logs/rank-00002.log")
    assert "Training interrupted: the next run in model_dir resumes from" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["sys.exit(0)", "os._exit(0)"])
def test_a_streamer_that_ends_well_in_the_middle_is_the_cause(place: FcMnist, ending: str) -> None:
    where = "        variant, sample = np.divmod("
    early = (
        "        import os, sys\n"
        '        if os.environ["SLURM_PROCID"] == "3" and os.path.exists("model_dir/checkpoint"):\n'
        f"            {ending}\n"
    )
    script = place.copy(data=DATA_TEXT.replace(where, early + where))
    place.configure(runconfig__max_steps=10**6)
    done = place.run(*TWO_STREAMERS, "python-ws", script, *place.own(()))
    assert done.returncode == 1
    said, missed, log = done.stderr.splitlines()[-3:]
    assert said == "csrun_wse: error: rank 3 (streamer) on node3 ended early, exit code 0"
    assert missed == "  rank 0 (chief) on node1: lost the connection to streamer 3"
    assert log.endswith("/logs/rank-00003.log")


@pytest.mark.parametrize("condition", ["True", 'rank == "3"'])
def test_sys_exit_gives_the_jobs_exit_code(place: FcMnist, condition: str) -> None:
    code, _, err = run_with(place, f"if {condition}: sys.exit(3)")
    assert code == 3
    assert "ended with exit code 3" in err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "message"),
    [
        (0, "the chief ended without starting this run: every task must make the same calls"),
        (1, "memoryx ended before it joined this run"),
        (3, "streamer 3 ended before it joined this run"),
    ],
)
def test_nobody_waits_for_a_task_that_left_early(place: FcMnist, rank: int, message: str) -> None:
    code, _, err = run_with(place, f'if rank == "{rank}": sys.exit(0)')
    assert code == 1
    role = {0: "chief", 1: "memoryx", 3: "streamer"}[rank]
    node = min(rank, 2) + 1
    early = f"csrun_wse: error: rank {rank} ({role}) on node{node} ended early, exit code 0\n"
    assert early in err
    assert message in err
    assert "Traceback" not in err


def test_a_script_that_catches_the_chiefs_error_goes_on_in_every_task(place: FcMnist) -> None:
    """There is no checkpoint to evaluate yet: only the chief looks, all must know."""
    attempt = (
        "    from csrun.base.errors import UsageError\n"
        "    from csrun.estimator import CerebrasEstimator\n"
        "    real = CerebrasEstimator.train\n"
        "    def train(estimator, *arguments, **options):\n"
        "        try:\n"
        "            estimator.evaluate(eval_input_fn)\n"
        "        except UsageError as error:\n"
        '            print(f"caught: {error}")\n'
        "        return real(estimator, *arguments, **options)\n"
        "    CerebrasEstimator.train = train\n"
    )
    script = place.copy(run=RUN_TEXT.replace(MAIN, MAIN + attempt))
    done = place.run(*TWO_STREAMERS, "python-ws", script, *place.own(()))
    assert done.returncode == 0, done.stderr
    assert "caught: model_dir: no checkpoint to restore" in done.stdout
    assert place.checkpoint(20).exists()


@pytest.mark.slow
def test_the_chief_says_which_checkpoints_are_evaluated(trained: FcMnist) -> None:
    """A training beside us may change them before the other tasks look."""
    place = trained
    other = (
        "    import os\n"
        "    from csrun.records import checkpoints\n"
        '    if os.environ["SLURM_PROCID"] != "0":\n'
        "        checkpoints.kept_steps = lambda model_dir: (5,)\n"
    )
    script = place.copy(run=RUN_TEXT.replace(MAIN, MAIN + other))
    arguments = place.own(("--mode", "eval_all"))
    done = place.run(*TWO_STREAMERS, "python-ws", script, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Saving dict for global step") == 5
