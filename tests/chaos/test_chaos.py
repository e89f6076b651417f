"""A part of `scripts/chaos`: kills and failing disks, against the undisturbed run's bytes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from chaos import disks, rounds
from chaos.configurations import CONFIGURATIONS, GOAL, Configuration, Results, place_of, undisturbed
from chaos.figures import Row, table
from chaos.rounds import BYTES, CAUSE, CODE, HUNG, LEFT, Ended, Kill, Round
from support.fc_mnist import FcMnist

#: A seed whose kill of each configuration is another role's, three of them amid a checkpoint and
#: two in a phase of an epoch; its two disks differ in mode, error and duration.
SEED, KILLS, DISKS = os.environ.get("CHAOS_SEED", "108807"), 1, 2
STREAMING = CONFIGURATIONS["streaming"]
#: scripts/chaos has them all; these are most like others.
LEFT_OUT = {"tcp", "parts", "torch", "systems-servers", "stopping-pipelined"}
LOCAL = tuple(name for name in CONFIGURATIONS if name not in {"slurm", *LEFT_OUT})
needs_compiler = pytest.mark.skipif(not disks.HAS_COMPILER, reason="there is no cc")


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Configuration], Results]:
    """Results of undisturbed trainings; most configurations share one."""
    found: dict[str, Results] = {}

    def of(configuration: Configuration) -> Results:
        key = configuration.reference
        if key not in found:
            folder = tmp_path_factory.mktemp("chaos") / "undisturbed"
            found[key] = undisturbed(folder, configuration)
        return found[key]

    return of


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", LOCAL)
def test_kills(tmp_path: Path, references: Callable[[Configuration], Results], name: str) -> None:
    if CONFIGURATIONS[name].is_torch:
        pytest.importorskip("torch")
    reference = references(CONFIGURATIONS[name])
    found = rounds.kill_round(tmp_path, name, SEED, reference, None, KILLS)
    assert not found.faults, found


@pytest.mark.skipif("CHAOS_SEED" in os.environ, reason="of the seed in this file")
def test_the_seed_kills_each_role_once() -> None:
    drawn, roles = [], set()
    for name in LOCAL:
        chance, _ = rounds.begin(name, SEED)
        drawn.append(rounds.draw(CONFIGURATIONS[name], chance).role)
        roles |= {*CONFIGURATIONS[name].roles}
    assert sorted(drawn) == sorted(roles)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["stopping", "stopping-process"])
def test_an_undisturbed_training_is_pytorchs(
    tmp_path: Path, references: Callable[[Configuration], Results], name: str
) -> None:
    """Within rounding: losses, accuracies, rates, the epoch of the stop, the best weights."""
    torch = pytest.importorskip("torch")
    configuration = CONFIGURATIONS[name]
    ours = references(configuration)
    command = [sys.executable, configuration.script, *configuration.arguments]
    plain = {**os.environ, "PYTHONPATH": str(Path(__file__).parent / "plain")}
    subprocess.run(command, cwd=tmp_path, env=plain, check=True, stdout=subprocess.DEVNULL)
    history = json.loads((tmp_path / "history.json").read_text())
    found = json.loads(ours["history.json"])
    assert len(found) == len(history)
    torch.testing.assert_close(found, history, rtol=1e-4, atol=1e-6)
    best = torch.load(tmp_path / "best.pt")
    torch.testing.assert_close(torch.load(BytesIO(ours["best.pt"])), best, rtol=1e-4, atol=1e-6)


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("number", range(DISKS))
def test_failing_disks(
    tmp_path: Path, references: Callable[[Configuration], Results], number: int
) -> None:
    library = disks.compiled(tmp_path)
    seed = f"{SEED}.{number}"
    found = disks.disk_round(tmp_path, seed, references, library)
    assert not found.faults, found


@needs_compiler
@pytest.mark.parametrize(
    ("call", "for_good", "said"),
    [
        (1, "0", ["No space left on device", "", ""]),
        (2, "0", ["", "No space left on device", ""]),
        (2, "1", ["", "No space left on device", "No space left on device"]),
        (9, "1", ["", "", ""]),
    ],
)
def test_the_disk_fails_at_the_call(
    tmp_path: Path, call: int, for_good: str, said: list[str]
) -> None:
    """By a shell: three writes in the folder, others outside."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "file").touch()
    variables = {"CHAOS_FOLDER": os.path.realpath(inside), "CHAOS_AT": str(call)}
    variables |= {"CHAOS_ERRNO": "28", "CHAOS_FOR_GOOD": for_good}
    variables["LD_PRELOAD"] = str(disks.compiled(tmp_path))
    script = (
        "import os\n"
        f"there = os.open({str(inside / 'file')!r}, os.O_WRONLY)\n"
        f"beside = os.open({str(tmp_path / 'beside')!r}, os.O_WRONLY | os.O_CREAT)\n"
        "def calls():\n"
        "    yield lambda: os.write(there, b'1')\n"
        "    yield lambda: os.fsync(there)\n"
        f"    yield lambda: os.rename({str(inside / 'file')!r}, {str(inside / 'other')!r})\n"
        "for call in calls():\n"
        "    os.write(beside, b'1')\n"
        "    try: call(); print()\n"
        "    except OSError as error: print(error.strerror)\n"
    )
    done = subprocess.run(
        ["python3", "-c", script],
        env={**os.environ, **variables}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == said
    assert (tmp_path / "beside").read_bytes() == b"111"


def named(role: str, words: str) -> Ended:
    return Ended(137, "", f"csrun_wse: error: {words} was killed by signal 9 (SIGKILL)\n")


KILL = Kill("chief", signal.SIGKILL, 0.1)
INTERRUPT = Kill("launcher", signal.SIGINT, 0)
RIGHT = named("chief", "rank 0 (chief) on node1")


@pytest.mark.parametrize(
    ("kill", "ended", "came", "kinds"),
    [
        (KILL, RIGHT, True, []),
        (KILL, replace(RIGHT, code=None), True, [HUNG]),
        (KILL, replace(RIGHT, code=1), True, [CODE]),
        (KILL, replace(RIGHT, code=0), True, [CODE]),
        (KILL, RIGHT, False, [CODE]),
        (KILL, named("chief", "rank 2 (streamer) on node3"), True, [CAUSE]),
        (KILL, replace(RIGHT, err=RIGHT.err * 2), True, [CAUSE]),
        (KILL, replace(RIGHT, err="Traceback (most recent\n" + RIGHT.err), True, [CAUSE]),
        (replace(KILL, role="wafer"), RIGHT, True, [CAUSE]),
        (replace(KILL, role="launcher"), Ended(-9, "", ""), True, []),
        (replace(KILL, role="launcher"), RIGHT, True, [CAUSE]),
        (Kill("launcher", signal.SIGTERM, 0), Ended(143, "", ""), True, [CAUSE]),
        (Kill("launcher", signal.SIGTERM, 0), Ended(-15, "", ""), True, []),
        (INTERRUPT, Ended(130, "", "csrun_wse: Ctrl-C (SIGINT): job terminated"), True, []),
        (INTERRUPT, Ended(130, "", "\ncsrun_wse: error: interrupted\n"), True, []),
        (INTERRUPT, Ended(-2, "", "\ncsrun_wse: error: interrupted\n"), True, []),
        (INTERRUPT, Ended(130, "", "csrun_wse: error: it was full\n"), True, [CAUSE]),
    ],
)
def test_the_judge_of_a_kill(kill: Kill, ended: Ended, came: bool, kinds: list[str]) -> None:
    found = Round("")
    rounds.judge_kill(found, kill, ended, came, is_over=False)
    assert [kind for kind, _ in found.faults] == kinds


def test_a_kill_amid_a_checkpoint_waits_for_one(tmp_path: Path) -> None:
    place = place_of(tmp_path / "place", STREAMING)
    place.model_dir.mkdir()
    looks = []

    def poll() -> None:
        looks.append(None)
        if len(looks) == 3:
            (place.model_dir / ".csrun-01234567.tmp").touch()

    rounds.await_checkpoint(place, SimpleNamespace(poll=poll))
    assert len(looks) == 3


def test_a_kill_in_a_phase_waits_for_it_or_that_of_a_later_epoch(tmp_path: Path) -> None:
    place, left = FcMnist(tmp_path), ["4 training", "", "3 evaluation", "4 end", "6 evaluation"]

    def poll() -> None:
        (tmp_path / "phase").write_text(left.pop(0))

    rounds.await_phase(place, SimpleNamespace(poll=poll), (4, "evaluation"))
    assert not left


def test_the_judge_of_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong bytes, a temporary file and a process left are all reported."""
    monkeypatch.setattr(rounds, "GONE_S", 0.1)
    place = place_of(tmp_path / "place", STREAMING)
    place.model_dir.mkdir()
    place.checkpoint(GOAL).write_bytes(b"others")
    (place.model_dir / ".csrun-1.tmp").touch()
    left = subprocess.Popen(["sleep", "600"], cwd=place.path)
    found = Round("")
    rounds.judge_end(found, place, STREAMING, dict.fromkeys(STREAMING.results, b"these"))
    assert left.wait() == -signal.SIGKILL
    assert [kind for kind, _ in found.faults] == [LEFT, BYTES, LEFT]
    assert found.faults[0][1].startswith(f"process {left.pid}")


def test_the_table() -> None:
    row = Row()
    row.add(Round("", 2, [(LEFT, "a"), (LEFT, "b"), (HUNG, "c")]))
    row.add(Round("", 3))
    lines = [line.split("  ") for line in table([("tcp", row)]).splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells == [
        [
            "rounds",
            "disturbed",
            "hung",
            "wrong bytes",
            "wrong exit code",
            "cause not named",
            "left",
        ],
        ["tcp", "2", "5", "1", "0", "0", "0", "1"],
    ]
