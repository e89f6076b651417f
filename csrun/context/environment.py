"""Environment variables of this process, for other programs, and of a forked task.

All other packages but `site` access the environment through this module.
"""

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
# set in csrun's batch scripts: names of the systems allocated to the job
ALLOCATION = "CSRUN_ALLOCATION"
_NO_SYSTEM = "-"
ANALYSIS_DIR = "CSRUN_ANALYSIS_DIR"  # set by cs_input_analyzer: folder for its measurements
PREPARATION = "CSRUN_PREPARATION"  # preparation that the command requests instead of a run
#: Threads of a BLAS library do not survive a fork.
ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class SlurmPlace:
    """Slurm's variables of a process started by srun; other data are in the job's plan.

    In a heterogeneous job some of Slurm's variables describe another component.
    """

    node_id: int
    node: str
    job_id: int
    launch_address: str  # of the node on which srun was started
    account: str = ""  # account that the job is charged to; empty if the cluster has no accounts


def slurm_place() -> SlurmPlace:
    """Return the place of this process among those that srun started on each node."""
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
    """Resources of the Slurm job around this process; its nodes are those of the job.

    is_whole: the job has no separate components.
    is_users: the user requested the allocation, and csrun must not end it.
    """

    systems: tuple[str, ...]
    is_whole: bool = False
    is_users: bool = False


def user_job() -> int | None:
    """Return the id of the Slurm job around this process, unless csrun submitted that job."""
    number = os.environ.get("SLURM_JOB_ID", "")
    return int(number) if number.isdigit() and ALLOCATION not in os.environ else None


def unset_job_variables() -> None:
    """Remove the variables of the surrounding job, so that srun and sbatch request a new one.

    Source: srun(1), INPUT ENVIRONMENT VARIABLES, for the variables that a user may have set
    """
    names = ("ACCOUNT", "CLUSTERS", "CONF", "CONSTRAINT", "PARTITION", "QOS", "RESERVATION")
    kept = {f"SLURM_{name}" for name in (*names, "WCKEY")}
    for name in [name for name in os.environ if name.startswith("SLURM_") and name not in kept]:
        del os.environ[name]


def allocation() -> SlurmAllocation | None:
    """Return the allocation of this process if it is the script of one of csrun's batch jobs."""
    given = os.environ.get(ALLOCATION)
    if given is None:
        return None
    return SlurmAllocation(() if given == _NO_SYSTEM else tuple(given.split(",")))


def allocation_command(systems: Iterable[str]) -> tuple[str, str]:
    """Return the start of a command that runs a program in an allocation with these systems."""
    return "env", f"{ALLOCATION}={','.join(systems) or _NO_SYSTEM}"


def restarted_job() -> int | None:
    """Return the id of the batch job of this process if Slurm has restarted it.

    Source: sbatch(1), SLURM_RESTART_COUNT
    """
    again = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    return int(os.environ["SLURM_JOB_ID"]) if again else None


def analysis_dir() -> Path | None:
    """Return the folder for measurements if this process runs for cs_input_analyzer."""
    given = os.environ.get(ANALYSIS_DIR)
    return Path(given) if given else None


class Preparation(StrEnum):
    """Preparations that replace a run: they need no CS system and compute no step."""

    COMPILE_ONLY = "compile_only"
    VALIDATE_ONLY = "validate_only"


def preparation() -> Preparation | None:
    """Return the preparation that the launcher's command requests; None for a run.

    It applies even if the script does not parse its own command line.
    """
    given = os.environ.get(PREPARATION)
    return Preparation(given) if given else None


def for_srun() -> dict[str, str]:
    """Return the environment of srun and its tasks, without variables of the batch script's
    step.
    """
    of_the_step = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK")
    dropped = {
        ALLOCATION,
        *of_the_step,
        "SLURM_NTASKS_PER_NODE",
        "SLURM_NNODES",
        *_set_by_csrun("SLURM"),
    }
    return {name: value for name, value in os.environ.items() if name not in dropped}


def for_sbatch() -> dict[str, str]:
    """Return the environment of sbatch, without variables that would override the script's
    options.
    """
    dropped = {"SBATCH_ARRAY_INX", "SBATCH_JOB_NAME", *_set_by_csrun("SBATCH")}
    return {name: value for name, value in os.environ.items() if name not in dropped}


def partition(named: str | None, *, batch: bool) -> str | None:
    """Return the partition that sbatch or srun would use; None for the default.

    sbatch's variable overrides the script's option; srun's does not.

    Source: sbatch(1) and srun(1), INPUT ENVIRONMENT VARIABLES
    """
    if batch:
        return os.environ.get("SBATCH_PARTITION") or named
    return named or os.environ.get("SLURM_PARTITION")


def _set_by_csrun(prefix: str) -> list[str]:
    """Return input variables of Slurm's commands that csrun sets from layout and options."""
    names = ("DISTRIBUTION", "EXCLUSIVE", "EXPORT", "EXPORT_ENV", "GRES", "HINT", "LABELIO",
             "OUTPUT", "SIGNAL", "STDERRMODE", "STDOUTMODE", "TIMELIMIT")  # fmt: skip
    return [f"{prefix}_{name}" for name in names]


def inherited() -> dict[str, str]:
    """Return a copy of this process's environment, for another program."""
    return dict(os.environ)


def adopt(variables: Mapping[str, str]) -> None:
    """Set variables in this process; for a forked task, whose environment cannot be passed."""
    os.environ.update(variables)


@contextmanager
def adopted(name: str, value: str) -> Iterator[None]:
    """Context manager that sets a variable for this process and its children."""
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
    """Set the variables of an array element's launcher, for its tasks.

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
    """Debug output on the console in addition to a run's log lines."""

    NOTHING = 0
    PASSES = 1  # each compiler pass: its time and its changes
    STAGES = 2  # also the module's text after each pass


def debug_level() -> DebugLevel:
    """Return the requested debug level.

    Raises: UsageError for an invalid value
    """
    text = os.environ.get(DEBUG, "0")
    try:
        return DebugLevel(int(text))
    except ValueError as error:
        known = ", ".join(f"{level.value} ({level.name.lower()})" for level in DebugLevel)
        raise UsageError(f"{DEBUG} must be one of {known}, got {text!r}") from error


def state_dir() -> Path:
    """Return the folder of durable state: `CSRUN_STATE_DIR`, or the user's state folder."""
    if override := os.environ.get("CSRUN_STATE_DIR"):
        return Path(override)
    import platformdirs  # not needed where the site sets the folder

    return Path(platformdirs.user_state_dir("csrun"))


def cache_dir() -> Path:
    """Return the folder of data that can be regenerated: `CSRUN_CACHE_DIR`, or the user's cache
    folder.
    """
    if override := os.environ.get("CSRUN_CACHE_DIR"):
        return Path(override)
    import platformdirs

    return Path(platformdirs.user_cache_dir("csrun"))


def site_state_dir(site_name: str) -> Path:
    """Return the state folder of a site: its systems, nodes and jobs."""
    return state_dir() / site_name


def account_state_dir(site_name: str, shared: bool = False) -> Path:
    """Return this account's part of a site's state folder: its jobs and their records."""
    if not shared:
        return site_state_dir(site_name)
    return site_state_dir(site_name) / "accounts" / str(os.getuid())


_VARIABLE = re.compile(r"\$(\w+|\{[^}]*\})", re.ASCII)  # the syntax of os.path.expandvars


def jobs_dir_of(site_name: str, configured: str | None = None, shared: bool = False) -> Path:
    """Return the folder of this account's job folders, from the site file or in the state folder.

    Raises: UsageError if it contains a variable that is not set
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
    """Return the folders with job folders of all accounts, as far as this account can find them.

    These are the folders that jobs_dir gives for other values of `$USER`, or the state folders of
    other accounts on a shared site.
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
    """Permission of an SSH key: administer the systems, or view them."""

    ADMIN = "admin"
    USER = "user"


class SshLogin(msgspec.Struct, frozen=True):
    """One SSH connection; without a command it opens the `cs>` prompt."""

    role: LoginRole
    command: str | None


def ssh_login() -> SshLogin:
    """Return the SSH login that this process serves. A key without a role may only view.

    Source: sshd(8), AUTHORIZED_KEYS FILE FORMAT, environment="NAME=value"; sshd_config(5),
    ForceCommand, for SSH_ORIGINAL_COMMAND

    Raises: UsageError for an unknown role
    """
    role = os.environ.get(ROLE, LoginRole.USER)
    try:
        return SshLogin(LoginRole(role), os.environ.get(ORIGINAL_COMMAND))
    except ValueError as error:
        known = ", ".join(LoginRole)
        raise UsageError(f"{ROLE} of this key must be one of {known}, got {role!r}") from error


def use_torch_for_keras() -> None:
    """Select Keras's PyTorch backend, unless the user has set another; call before the import."""
    os.environ.setdefault("KERAS_BACKEND", "torch")


def use_keras_2_for_tensorflow() -> None:
    """Make tf.keras Keras 2, which TensorFlow 1 models need, and let TensorFlow log only errors."""
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
