"""Environment variables: read, passed on as a whole, replaced in a forked task."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path

import msgspec

from csrun.base.errors import UsageError

JOB_DIR = "CSRUN_JOB_DIR"
SITE = "CSRUN_SITE"
WAFER = "CSRUN_WAFER"
RANK = "SLURM_PROCID"
ALLOCATION = "CSRUN_ALLOCATION"  # in a batch script of csrun's: the systems that its job was given
_NO_SYSTEM = "-"
ANALYSIS_DIR = "CSRUN_ANALYSIS_DIR"  # of cs_input_analyzer: where to leave what was measured
PREPARATION = "CSRUN_PREPARATION"  # what the command's words ask for in place of a run
#: For a process that forks: the threads of a BLAS do not survive it.
ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class SlurmPlace:
    """Slurm's variables of a process that srun has started; all else is in the job's plan.

    Of a heterogeneous job some of Slurm's variables are those of another component.
    """

    node_id: int
    node: str
    job_id: int
    launch_address: str  # of the node that srun was started on
    account: str = ""  # that the job is charged to; empty where the cluster has no accounts


def slurm_place() -> SlurmPlace:
    """The place of this process, one of those that srun has started on each node."""
    variables = os.environ
    return SlurmPlace(
        int(variables[RANK]),
        variables["SLURMD_NODENAME"],
        int(variables["SLURM_JOB_ID"]),
        variables["SLURM_LAUNCH_NODE_IPADDR"],
        variables.get("SLURM_JOB_ACCOUNT", ""),
    )


@dataclass(frozen=True)
class SlurmAllocation:
    """Resources of the Slurm job that this process runs in; its nodes are those of the job.

    is_whole: the job is one piece, without components. is_users: it was not csrun that asked for
    it, nor is it csrun's to end.
    """

    systems: tuple[str, ...]
    is_whole: bool = False
    is_users: bool = False


def users_job() -> int | None:
    """The job of Slurm's that this process runs in, if it is not csrun's own."""
    number = os.environ.get("SLURM_JOB_ID", "")
    return int(number) if number.isdigit() and ALLOCATION not in os.environ else None


def leave_users_job() -> None:
    """Forget the job around this process: srun and sbatch then ask for a new one.

    Source: srun(1), INPUT ENVIRONMENT VARIABLES, for those that a user may have set
    """
    names = ("ACCOUNT", "CLUSTERS", "CONF", "CONSTRAINT", "PARTITION", "QOS", "RESERVATION")
    kept = {f"SLURM_{name}" for name in (*names, "WCKEY")}
    for name in [name for name in os.environ if name.startswith("SLURM_") and name not in kept]:
        del os.environ[name]


def allocation() -> SlurmAllocation | None:
    """The allocation that this process runs in, if it is the script of a batch job of csrun's."""
    given = os.environ.get(ALLOCATION)
    if given is None:
        return None
    return SlurmAllocation(() if given == _NO_SYSTEM else tuple(given.split(",")))


def allocation_words(systems: Iterable[str]) -> tuple[str, str]:
    """Shell words that start a program in an allocation with these systems."""
    return "env", f"{ALLOCATION}={','.join(systems) or _NO_SYSTEM}"


def restarted_job() -> int | None:
    """The number of the batch job that this process runs in, when Slurm has started it again.

    Source: sbatch(1), SLURM_RESTART_COUNT
    """
    again = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    return int(os.environ["SLURM_JOB_ID"]) if again else None


def analysis_dir() -> Path | None:
    """The folder of the analysis that this process is run for, if it is."""
    given = os.environ.get(ANALYSIS_DIR)
    return Path(given) if given else None


class Preparation(StrEnum):
    """Requests that replace a run: no CS system is needed, and no step taken."""

    COMPILE_ONLY = "compile_only"
    VALIDATE_ONLY = "validate_only"


def preparation() -> Preparation | None:
    """Request of the command that a launcher of csrun's runs in this process; None for a run.

    A script need not read its own command line for these words to hold.
    """
    given = os.environ.get(PREPARATION)
    return Preparation(given) if given else None


def for_srun() -> dict[str, str]:
    """The environment that srun and the tasks under it get: what a batch job's script gets of
    its own step is not for them.
    """
    of_the_step = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK")
    dropped = {
        ALLOCATION,
        *of_the_step,
        "SLURM_NTASKS_PER_NODE",
        "SLURM_NNODES",
        *_said_by_csrun("SLURM"),
    }
    return {name: value for name, value in os.environ.items() if name not in dropped}


def for_sbatch() -> dict[str, str]:
    """The environment that sbatch gets: its variables would win against what a script asks for."""
    dropped = {"SBATCH_ARRAY_INX", "SBATCH_JOB_NAME", *_said_by_csrun("SBATCH")}
    return {name: value for name, value in os.environ.items() if name not in dropped}


def partition(named: str | None, *, batch: bool) -> str | None:
    """The partition that sbatch, or srun, takes; None for the default one.

    A variable of sbatch's wins against what the script asks for, one of srun's does not.

    Source: sbatch(1) and srun(1), INPUT ENVIRONMENT VARIABLES
    """
    if batch:
        return os.environ.get("SBATCH_PARTITION") or named
    return named or os.environ.get("SLURM_PARTITION")


def _said_by_csrun(prefix: str) -> list[str]:
    """Input variables of Slurm's commands for what a job's layout and options decide."""
    names = ("DISTRIBUTION", "EXCLUSIVE", "EXPORT", "EXPORT_ENV", "GRES", "HINT", "LABELIO",
             "OUTPUT", "SIGNAL", "STDERRMODE", "STDOUTMODE", "TIMELIMIT")  # fmt: skip
    return [f"{prefix}_{name}" for name in names]


def inherited() -> dict[str, str]:
    """A copy of this process's environment, to start another program with."""
    return dict(os.environ)


def adopt(variables: Mapping[str, str]) -> None:
    """Set these variables in this process: for a task that was forked, not started."""
    os.environ.update(variables)


@contextmanager
def adopted(name: str, value: str) -> Iterator[None]:
    """A variable that this process and what it starts have for a while."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def adopt_array(array_id: int, index: int, indices: Iterable[int]) -> None:
    """Be the launcher of an array's element, as its tasks will see.

    Source: sbatch(1), OUTPUT ENVIRONMENT VARIABLES
    """
    all_indices = tuple(indices)
    adopt(
        {
            "CSRUN_ARRAY_ID": str(array_id),
            "CSRUN_ARRAY_TASK_ID": str(index),
            "SLURM_ARRAY_JOB_ID": str(array_id),
            "SLURM_ARRAY_TASK_ID": str(index),
            "SLURM_ARRAY_TASK_COUNT": str(len(all_indices)),
            "SLURM_ARRAY_TASK_MIN": str(min(all_indices)),
            "SLURM_ARRAY_TASK_MAX": str(max(all_indices)),
        }
    )


DEBUG = "CSRUN_DEBUG"


class DebugLevel(IntEnum):
    """Debug output on the console besides a run's own lines."""

    NOTHING = 0
    PASSES = 1  # the compiler's passes: how long each took, what it did
    STAGES = 2  # the module's text after each of them, too


def debug_level() -> DebugLevel:
    """The level that the user asks for.

    Raises: UsageError for a value that is none
    """
    text = os.environ.get(DEBUG, "0")
    try:
        return DebugLevel(int(text))
    except ValueError as error:
        known = ", ".join(f"{level.value} ({level.name.lower()})" for level in DebugLevel)
        raise UsageError(f"{DEBUG} must be one of {known}, got {text!r}") from error


def state_dir() -> Path:
    """The folder of csrun's durable state: `CSRUN_STATE_DIR`, or the user's state folder."""
    if override := os.environ.get("CSRUN_STATE_DIR"):
        return Path(override)
    import platformdirs  # not needed where a site sets the folder

    return Path(platformdirs.user_state_dir("csrun"))


def cache_dir() -> Path:
    """The folder of what csrun can make again: `CSRUN_CACHE_DIR`, or the user's cache folder."""
    if override := os.environ.get("CSRUN_CACHE_DIR"):
        return Path(override)
    import platformdirs

    return Path(platformdirs.user_cache_dir("csrun"))


def site_state_dir(site_name: str) -> Path:
    """The part of the state that belongs to one site: its systems, nodes and jobs."""
    return state_dir() / site_name


def account_state_dir(site_name: str, shared: bool = False) -> Path:
    """The part of a site's state that is this account's: its jobs and their records."""
    if not shared:
        return site_state_dir(site_name)
    return site_state_dir(site_name) / "accounts" / str(os.getuid())


_VARIABLE = re.compile(r"\$(\w+|\{[^}]*\})", re.ASCII)  # as os.path.expandvars has it


def jobs_dir_of(site_name: str, configured: str | None = None, shared: bool = False) -> Path:
    """The folder of this account's job folders: what the site file says, else in csrun's state.

    Raises: UsageError for a variable in it that is not set
    """
    if configured is None:
        return account_state_dir(site_name, shared) / "jobs"
    for name in _VARIABLE.findall(configured):
        if name.strip("{}") not in os.environ:
            raise UsageError(
                f"site {site_name}: jobs_dir: {configured}: ${name} is not set: set it, or name"
                " the folder without it"
            )
    return Path(os.path.expandvars(configured)).expanduser()


def every_jobs_dir(
    site_name: str, configured: str | None = None, shared: bool = False
) -> list[Path]:
    """The folders of job folders of all accounts that this account can find: with `$USER` in
    jobs_dir, or on a shared site, those of others next to its own.
    """
    if configured is None:
        if not shared:
            return [jobs_dir_of(site_name)]
        return sorted((site_state_dir(site_name) / "accounts").glob("*/jobs"))
    of_any = re.sub(r"\$(USER\b|\{USER\})", "*", configured, flags=re.ASCII)
    if of_any == configured:
        return [jobs_dir_of(site_name, configured)]
    pattern = jobs_dir_of(site_name, of_any)
    return sorted(Path("/").glob(str(pattern.absolute().relative_to("/"))))


ROLE = "CSRUN_ROLE"
ORIGINAL_COMMAND = "SSH_ORIGINAL_COMMAND"


class LoginRole(StrEnum):
    """Permission of a key: change the systems, or look at them."""

    ADMIN = "admin"
    USER = "user"


class SshLogin(msgspec.Struct, frozen=True):
    """One connection; without a command it wants the prompt."""

    role: LoginRole
    command: str | None


def ssh_login() -> SshLogin:
    """The log-in that this process is for. A key that names no role may look only.

    Source: sshd(8), AUTHORIZED_KEYS FILE FORMAT, environment="NAME=value"; sshd_config(5),
    ForceCommand, for SSH_ORIGINAL_COMMAND

    Raises: UsageError for a role that there is not
    """
    role = os.environ.get(ROLE, LoginRole.USER)
    try:
        return SshLogin(LoginRole(role), os.environ.get(ORIGINAL_COMMAND))
    except ValueError as error:
        known = ", ".join(LoginRole)
        raise UsageError(f"{ROLE} of this key must be one of {known}, got {role!r}") from error


def use_torch_for_keras() -> None:
    """Have Keras take its PyTorch backend when it is imported, unless the user has set another."""
    os.environ.setdefault("KERAS_BACKEND", "torch")


def use_keras_2_for_tensorflow() -> None:
    """Have tf.keras be Keras 2, as models of TensorFlow 1 need, and TensorFlow log errors only."""
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
