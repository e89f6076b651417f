"""Submitted jobs, compiles that hold no system, and commands on a node of a cluster."""

import dataclasses
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from support.jobs import STALL_S, Sandbox, until
from support.testbed import Testbed, site_file

pytestmark = pytest.mark.slurm

FC_MNIST = Path(__file__).parents[2] / "reference_models" / "fc_mnist" / "run.py"
TRAIN = ("--total-nodes", "4", "python-ws", str(FC_MNIST), "--mode", "train", "--max_steps", "5")
SUBMITTED = re.compile(r"Submitted batch job (\d+)( \(compile\))?")


def ended(testbed: Testbed) -> bool:
    return not testbed.queue()


def test_a_submitted_job_compiles_before_it_asks_for_the_system(
    cluster_place: Sandbox, testbed: Testbed
) -> None:
    done = cluster_place.run("--sbatch", "--compile-first", "--job-name", "digits", *TRAIN)
    assert done.returncode == 0, done.stderr
    submitted = SUBMITTED.findall(done.stdout)
    assert [bool(compiles) for _, compiles in submitted] == [True, False]
    compiling, training = (number for number, _ in submitted)
    shown = testbed.call("scontrol", "show", "job", compiling)
    assert "JobName=digits" in shown
    assert "gres" not in shown.lower().replace("tresbind", "")
    assert "cs:cs2-02:1" in testbed.call("scontrol", "show", "job", training)
    script = testbed.call("scontrol", "write", "batch_script", training, "-")
    assert "#SBATCH hetjob" in script
    until(lambda: ended(testbed))
    said = {n: (cluster_place.path / f"slurm-{n}.out").read_text() for n in (compiling, training)}
    assert "Compiled in" in said[compiling]
    assert "global_step" not in said[compiling]
    assert "Cached compilation found" in said[training]
    assert "Loss for final step" in said[training]
    assert not list(cluster_place.jobs.rglob("secret"))


@pytest.mark.slow
def test_the_compile_before_a_script_that_ignores_the_word_trains_nothing(
    cluster_place: Sandbox,
) -> None:
    cluster_place.script(
        "import numpy as np\n"
        "from csrun import nn\n"
        "from csrun.estimator import CerebrasEstimator, CSEstimatorSpec\n"
        "def model_fn(features, labels, mode, params):\n"
        "    loss = nn.softmax_cross_entropy(nn.Dense(2, name='out')(features), labels)\n"
        "    return CSEstimatorSpec(mode, loss=loss, train_op=nn.SGD(0.1).minimize(loss))\n"
        "batch = np.ones((8, 4), 'f'), np.zeros(8, 'i')\n"
        "CerebrasEstimator(model_fn).train(lambda params: [batch] * 9, max_steps=3)\n"
    )
    done = cluster_place.run("--compile-first", "--total-nodes", "3", "python-ws", "run.py")
    assert done.returncode == 0, done.stderr
    compiling, training = done.stdout.split("no step was run")
    assert "global_step" not in compiling
    assert "Cached compilation found" in training
    assert "Loss for final step" in training


def test_a_submitted_job_ends_with_the_code_of_its_first_cause(
    cluster_place: Sandbox, testbed: Testbed
) -> None:
    cluster_place.script("import os, sys, time\nif os.environ['SLURM_PROCID'] == '3': sys.exit(7)\n"
                         "time.sleep(600)")  # fmt: skip
    done = cluster_place.run("--sbatch", "--total-nodes", "4", "python", "run.py")
    number = SUBMITTED.findall(done.stdout)[0][0]
    until(lambda: ended(testbed))
    out = (cluster_place.path / f"slurm-{number}.out").read_text()
    assert "rank 3 (streamer) on node2 ended with exit code 7" in out
    assert "ExitCode=7:0" in testbed.call("scontrol", "show", "job", number)


def test_a_compile_that_fails_keeps_the_job_from_running(
    cluster_place: Sandbox, testbed: Testbed
) -> None:
    cluster_place.script("import sys\nsys.exit(5 if '--compile_only' in sys.argv else 0)")
    waited = cluster_place.run("--compile-first", "python", "run.py")
    assert waited.returncode == 5
    assert cluster_place.run("--sbatch", "--compile-first", "python", "run.py").returncode == 0
    until(lambda: ended(testbed))


def test_what_sbatch_refuses_is_no_outage(
    cluster_place: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster_place.script("")
    monkeypatch.setenv("SBATCH_CONSTRAINT", "no-such-feature")
    done = cluster_place.run("--sbatch", "--total-nodes", "3", "python", "run.py")
    assert done.returncode == 2
    assert "refused by Slurm: Batch job submission failed: " in done.stderr


@pytest.mark.slow
def test_a_job_queues_for_the_system_that_another_one_has(
    cluster_place: Sandbox, testbed: Testbed
) -> None:
    """Both could have their nodes at once; only the gres makes the second one wait."""
    cluster_place.script("import os, time\nopen(f'in{os.environ[\"SLURM_JOB_ID\"]}', 'w').close()\n"
                         "time.sleep(600)")  # fmt: skip
    small = ("--total-nodes", "2", "--tasks-per-node", "1", "--cpus-per-task", "1")
    with cluster_place.start(*small, "python", "run.py") as first:
        until(lambda: len(list(cluster_place.path.glob("in*"))) == 1)
        with cluster_place.start(*small, "python", "run.py") as second:
            pending = ("squeue", "--noheader", "--states=PENDING", "--format=%r %b")
            until(lambda: "Resources gres:cs:cs2-01:1" in testbed.call(*pending))
            assert len(list(cluster_place.path.glob("in*"))) == 1
            first.terminate()
            first.communicate(timeout=STALL_S)
            until(lambda: len(list(cluster_place.path.glob("in*"))) == 2)
            second.terminate()
            second.communicate(timeout=STALL_S)
    assert (first.returncode, second.returncode) == (143, 143)


def test_the_mode_of_the_system_is_checked_before_the_job_is_queued(
    cluster_place: Sandbox, testbed: Testbed
) -> None:
    done = cluster_place.run(*TRAIN, "--cs_ip", "127.0.0.1")
    assert done.returncode == 2
    assert "cs2-01 is in PIPELINED mode, this run needs WEIGHT_STREAMING" in done.stderr
    assert "srun: job" not in done.stderr
    assert not testbed.queue()


SMALL = ("--total-nodes", "3", "--tasks-per-node", "1", "--cpus-per-task", "1")


def in_a_job(place: Sandbox, words: tuple[str, ...]) -> Sandbox:
    """The same folder in a user's allocation with these options."""
    return dataclasses.replace(place, around=("salloc", *words))


def test_a_users_allocation_that_holds_all_is_run_in(
    cluster_place: Sandbox, testbed: Testbed
) -> None:
    cluster_place.script(
        "import os\nrank, place = os.environ['SLURM_PROCID'], os.environ['SLURMD_NODENAME']\n"
        "open(f'rank{rank}', 'w').write(place + ' ' + os.environ['SLURM_JOB_ID'])"
    )
    outside = in_a_job(cluster_place, ("--nodes=1", "--exclusive"))
    refused = outside.run(*SMALL, "python", "run.py")
    assert refused.returncode == 2
    assert "has 1 nodes, the layout needs 3" in refused.stderr
    assert "--new-job" not in refused.stderr  # it could not start either
    beside = outside.run("--new-job", *SMALL, "python", "run.py")
    assert beside.returncode == 2
    assert "--new-job: node1, which has cs2-01, is held by the current job " in beside.stderr
    line = next(s for s in refused.stderr.splitlines() if s.startswith("  salloc "))
    told = in_a_job(cluster_place, tuple(shlex.split(line)[1:]))
    done = told.run(*SMALL, "python", "run.py")
    assert done.returncode == 0, done.stderr
    ranks = [(cluster_place.path / f"rank{rank}").read_text().split() for rank in range(3)]
    assert [node for node, _ in ranks] == ["node1", "node2", "node3"]
    granted = re.search(r"Granted job allocation (\d+)", done.stderr)
    assert granted is not None
    assert {job for _, job in ranks} == {granted[1]}
    assert told.run("sh", "-c", "exit 4", command="csrun_cpu").returncode == 4


def test_a_whole_allocation_carries_what_needs_no_system(cluster_place: Sandbox) -> None:
    cluster_place.script("import os\nopen('in' + os.environ['SLURM_PROCID'], 'w').write("
                         "os.environ['SLURMD_NODENAME'])")  # fmt: skip
    inside = in_a_job(cluster_place, ("--nodes=3", "--exclusive"))
    done = inside.run(*SMALL, "python", "run.py", "--validate_only")
    assert done.returncode == 0, done.stderr
    places = [(cluster_place.path / f"in{rank}").read_text() for rank in range(3)]
    assert places == ["node1", "node2", "node3"]
    refused = inside.run(*SMALL, "python", "run.py")
    assert (refused.returncode, "does not hold cs2-01" in refused.stderr) == (2, True)


def test_a_new_job_beside_the_users(cluster_place: Sandbox) -> None:
    cluster_place.script("import os\nprint('in', os.environ['SLURM_JOB_ID'])")
    inside = in_a_job(cluster_place, ("--nodes=1", "--exclude=node1,node2,node3"))
    done = inside.run("--new-job", *SMALL, "python", "run.py")
    assert done.returncode == 0, done.stderr
    granted = re.search(r"Granted job allocation (\d+)", done.stderr)
    assert granted is not None
    assert "in " in done.stdout
    assert f"in {granted[1]}\n" not in done.stdout


def test_a_cpu_node_of_the_cluster(cluster_place: Sandbox) -> None:
    say = 'echo "on $SLURMD_NODENAME"; exit 3'
    done = cluster_place.run("sh", "-c", say, command="csrun_cpu")
    assert done.returncode == 3
    node = re.search(r"^on (\w+)$", done.stdout, re.MULTILINE)
    assert node is not None
    assert node.group(1) != "node1"  # the one that has the systems


def test_a_command_on_a_node_ends_at_its_limit_to_the_second(cluster_place: Sandbox) -> None:
    """Slurm's own limits are whole minutes; the command gets SIGTERM, and its grace period."""
    say = "trap 'echo asked; exit 9' TERM; sleep 600 & wait"
    done = cluster_place.run("--time-limit", "0:02", "sh", "-c", say, command="csrun_cpu")
    assert done.returncode == 143
    assert done.stdout.splitlines()[-1] == "asked"
    assert "csrun_cpu: time limit of 0:02 reached: command terminated" in done.stderr
    done = cluster_place.run("--time-limit", "1:00", "sh", "-c", "exit 3", command="csrun_cpu")
    assert done.returncode == 3


def test_a_command_on_a_node_that_only_compiles_says_so_to_its_script(
    cluster_place: Sandbox,
) -> None:
    cluster_place.script("from csrun.context import preparation\nprint(repr(preparation()))")
    words = ("python-ws", "run.py")
    compiling = cluster_place.run(*words, "--compile_only", command="csrun_cpu")
    assert "Preparation.COMPILE_ONLY" in compiling.stdout
    training = cluster_place.run(*words, command="csrun_cpu")
    assert training.stdout.splitlines()[-1] == "None"


def test_the_dry_run_is_what_slurm_would_get(cluster_place: Sandbox) -> None:
    cluster_place.script("")
    line = cluster_place.run("--dry-run", "--total-nodes", "4", "python-ws", "run.py").stdout
    assert (
        "srun --unbuffered --kill-on-bad-exit --job-name=run.py --signal=TERM@30 --exclusive"
        " --nodes=1 --tasks-per-node=1 --cpus-per-task=8 --gres=cs:cs2-02:1 :"
    ) in line


@pytest.mark.parametrize("first", [pytest.param((), marks=pytest.mark.slow), ("--compile-first",)])
def test_the_dry_run_of_a_submission_is_a_file_that_is_taken(
    first: tuple[str, ...], cluster_place: Sandbox, testbed: Testbed
) -> None:
    cluster_place.script("print('it ran')")
    words = ("--sbatch", *first, "--job-name", "a b", "--slurm-option", "comment=it's #1")
    shown = cluster_place.run("--dry-run", *words, "--total-nodes", "3", "python", "run.py")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("#!/bin/sh\n")
    assert "#SBATCH --gres=cs:cs2-01:1" in shown.stdout
    file = cluster_place.path / "job.sh"
    file.write_text(shown.stdout)
    taken = subprocess.run(
        ["sh" if first else "sbatch", str(file)], cwd=cluster_place.path, text=True,
        env=testbed.environment | {"CSRUN_STATE_DIR": str(cluster_place.path / "state")},
        capture_output=True, check=False, timeout=120,
    )  # fmt: skip
    assert taken.returncode == 0, taken.stderr
    numbers = [number for number, _ in SUBMITTED.findall(taken.stdout)]
    assert len(numbers) == 1 + len(first)
    shown_job = testbed.call("scontrol", "show", "job", numbers[-1])
    assert "JobName=a b\n" in shown_job
    assert "Comment=it's #1 " in shown_job
    until(lambda: ended(testbed))
    for number in numbers:
        assert "it ran" in (cluster_place.path / f"slurm-{number}.out").read_text()


def test_slurms_options_and_the_lines_before_tasks(tmp_path: Path, testbed: Testbed) -> None:
    site = site_file(
        tmp_path, "slurm", slurm_options={"partition": "all", "comment": "of the site"},
        prolog=["export FROM_PROLOG=1"],
    )  # fmt: skip
    place = Sandbox(tmp_path, site=site, variables=(("SLURM_CONF", str(testbed.conf)),))
    place.script(
        "import os, subprocess\n"
        "assert os.environ['FROM_PROLOG']\n"
        "if os.environ['SLURM_PROCID'] == '0':\n"
        "    job = os.environ['SLURM_JOB_ID']\n"
        "    print(subprocess.run(['scontrol', 'show', 'job', job], capture_output=True,"
        " text=True).stdout)\n"
    )
    asked = ("--slurm-option", "comment=my own", "--slurm-option", "mem=100")
    done = place.run(*asked, "--total-nodes", "3", "python", "run.py")
    assert done.returncode == 0, done.stderr
    assert "Comment=my own " in done.stdout
    assert done.stdout.count("MinMemoryNode=100M") == 2  # components
    cpu = place.run(*asked, "sh", "-c", "echo from=$FROM_PROLOG", command="csrun_cpu")
    assert cpu.stdout.splitlines()[-1] == "from=1"
    refused = place.run("--slurm-option", "partition=none", "python", "run.py")
    assert (refused.returncode, "known: all, cpu" in refused.stderr) == (2, True)
    site.write_text(site.read_text().replace("export FROM_PROLOG=1", "no-such-module load x"))
    failed = place.run("--total-nodes", "3", "python", "run.py")
    assert "csrun_wse: error: prolog: no-such-module load x: failed" in failed.stderr
