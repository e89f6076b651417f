"""The commands of the pages run as printed: in the order of a page, in one prepared folder.

Models train and are evaluated for few steps there: numbers of their params files are lowered,
commands are not.
"""

import re
import shutil
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.pages import CHECKOUT, PAGES, blocks
from support.shell_commands import run_line, write_commands

MODELS = CHECKOUT / "reference_models"
#: Most of each number in a params file; the batches of evaluations without a limit stay.
STEPS, EVAL_STEPS, BATCH = 5, 5, 8
PROGRAMS = ("csrun_wse ", "csrun_cpu ", "cs_input_analyzer ", "python ")  # a line without `$`

INSTALLS = "installs into the environment"
CLUSTER = "needs a cluster: tests/slurm"
FC_MNIST = "reference_models/fc_mnist/README.md"
TRAINED_THERE = f"runs in {FC_MNIST}"
FOLDERS = "needs a folder of transformers: tests/reference_models/test_convert.py"
ELSEWHERE = "needs jobs in certain states: tests/docs/test_jobs_page.py"


@dataclass(frozen=True)
class Page:
    """Commands of a page.

    folder: the reader's working directory in the checkout; before: commands run there earlier.
    skipped: reasons by the beginning of a command; ends: exit codes other than 0, likewise.
    """

    folder: str = "reference_models/fc_mnist"
    before: tuple[str, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    needs: str | None = None


def model(name: str, *, needs: str | None = None, **skipped: str) -> Page:
    return Page(f"reference_models/{name}", skipped=skipped, needs=needs)


CONVERT = {
    "python convert.py": FOLDERS,
    "python run.py --mode train --params model_dir/params.yaml": FOLDERS,
}
TRAINED = ("python run.py", "python run.py --mode eval")
QUICK = {
    "docs/administration.md": Page(before=("cp $SITE cluster.yaml",)),
    "docs/systems.md": Page(),
}
SLOW = {
    "README.md": Page(
        ".",
        skipped={
            "./scripts/quickstart": "tests/job/test_readme.py",
            "source": "the environment of the tests is there",
            "./scripts/test": "runs these tests",
            "csrun_wse --total-nodes 4 python-ws run.py": TRAINED_THERE,
        },
    ),
    "docs/input.md": Page(),
    "docs/jobs.md": Page(
        skipped={
            "csctl": ELSEWHERE,
            "csrun_wse --array 1-3 --set lr": "a user's script: tests/launch/array",
        }
    ),
    "docs/model_dir.md": Page(
        before=TRAINED,
        skipped={
            "csrun checkpoint convert gpt2_folder": FOLDERS,
            "pip": INSTALLS,
            "tensorboard": "serves until it is ended",
        },
        ends={"csrun checkpoint diff": 1},  # the training changed the weights
        needs="torch",
    ),
    "docs/pytorch.md": Page(
        skipped={"csrun_wse --total-nodes 4 python-pt run_torch.py": TRAINED_THERE},
        needs="torch",
    ),
    "docs/streaming.md": Page(
        skipped={
            "csrun_wse --total-nodes 6": "needs 6 systems: tests/job/test_separate_hosts.py",
        }
    ),
    FC_MNIST: model("fc_mnist", needs="torch"),
    "reference_models/cnn_mnist/README.md": model("cnn_mnist"),
    "reference_models/keras_mnist/README.md": model("keras_mnist", needs="keras"),
    "reference_models/gpt2/README.md": model("gpt2", needs="torch", **CONVERT),
    "reference_models/gptj/README.md": model(
        "gptj", **CONVERT, **{"csrun_wse --total-nodes 14": "98 tasks: tests/launch"}
    ),
    "reference_models/bert/README.md": model(
        "bert",
        needs="torch",
        **CONVERT,
        **{"python run.py": "tests/reference_models/test_fine_tuning.py"},
    ),
}
#: Pages with the commands of another one, which runs.
SAME = {"docs/keras.md": "reference_models/keras_mnist/README.md"}
#: Pages whose commands cannot run here.
OTHERS = {
    "CONTRIBUTING.md": "runs these tests",
    "docs/benchmarks.md": "hours of benchmarks",
    "docs/clean-up.md": "tests/docs/test_clean_up_page.py",
    "docs/cs-login.md": "needs sshd: tests/cli/shell/test_login.py",
    "docs/dashboard.md": "serves until it is ended: tests/dashboard",
    "docs/design.md": "shows README.md's command",
    "docs/modelzoo.md": "needs a checkout of the Model Zoo: tests/job/test_modelzoo.py",
    "docs/slurm.md": CLUSTER,
    "docs/tensorflow.md": "a script that the page begins: tests/tensorflow_estimator",
    "docs/tools.md": "needs a user's files: tests/cli/test_params.py, test_run_comparison.py",
    "docs/top.md": "needs a job: tests/job/test_top.py",
}


def commands(page: Path) -> list[str]:
    """Command lines of a page's blocks: those after `$`, and those of csrun and Python."""
    lines = [line for block in blocks(page.read_text()) for line in block.splitlines()]
    shown = [line.removeprefix("$ ") for line in lines if line.startswith(("$ ", *PROGRAMS))]
    return [line for line in shown if ": " not in line.split("#")[0]]  # what a command says


def reason(line: str, reasons: dict[str, str]) -> str | None:
    return next((why for start, why in reasons.items() if line.startswith(start)), None)


def lowered(params: str) -> str:
    """Lower the params file to a training and an evaluation of seconds."""
    text, is_limited = re.subn(r"eval_steps: \d+", f"eval_steps: {EVAL_STEPS}", params)
    if is_limited:
        text = re.sub(r"batch_size: \d\d+", f"batch_size: {BATCH}", text)
    # The tests that run at once have one CPU each: a second thread of BLAS would take theirs.
    return re.sub(r"( *)max_steps: \d+", rf"\1max_steps: {STEPS}\n\1threads: 1", text)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy of the reference models with short trainings, and csrun's commands next to it."""
    folder = tmp_path / "checkout"
    leave_out = shutil.ignore_patterns("model_dir*", "__pycache__", "*.bin", "compile_report.txt")
    shutil.copytree(MODELS, folder / "reference_models", ignore=leave_out)
    for params in folder.glob("reference_models/*/configs/*.yaml"):
        params.write_text(lowered(params.read_text()))
    write_commands(tmp_path / "bin")
    return folder


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
@pytest.mark.timeout(1200)
def test_the_commands_of_a_page_run_as_printed(name: str, checkout: Path) -> None:
    page = (QUICK | SLOW)[name]
    if page.needs is not None and find_spec(page.needs) is None:
        pytest.skip(f"needs {page.needs}")
    folder = checkout / page.folder
    shown = [line for line in commands(CHECKOUT / name) if reason(line, page.skipped) is None]
    assert shown
    for line in (*page.before, *shown):
        code, said, folder = run_line(line, folder, checkout.parent)
        ends = {start: code for start, code in page.ends.items() if line.startswith(start)}
        assert code == next(iter(ends.values()), 0), f"$ {line}\n{said}"


def test_every_page_with_commands_is_run_or_has_a_reason() -> None:
    with_commands = {str(p.relative_to(CHECKOUT)) for p in PAGES if commands(p)}
    assert with_commands == {*QUICK, *SLOW, *SAME, *OTHERS}


@pytest.mark.parametrize(("name", "other"), SAME.items())
def test_the_commands_are_those_of_the_page_that_runs(name: str, other: str) -> None:
    assert commands(CHECKOUT / name) == commands(CHECKOUT / other)


@pytest.mark.parametrize("name", QUICK | SLOW)
def test_what_is_skipped_is_on_the_page(name: str) -> None:
    page, shown = (QUICK | SLOW)[name], commands(CHECKOUT / name)
    for start in (*page.skipped, *page.ends):
        assert [line for line in shown if line.startswith(start)], start


def test_what_runs_on_another_page_is_there() -> None:
    there = [line.split("#")[0].strip() for line in commands(CHECKOUT / FC_MNIST)]
    for name, page in (QUICK | SLOW).items():
        for line in commands(CHECKOUT / name):
            if reason(line, page.skipped) == TRAINED_THERE:
                assert line.split("#")[0].strip() in there
