"""Context of a task: rank, role, the job's folder, the link to its launcher."""

from csrun.context.environment import (
    DebugLevel,
    Preparation,
    account_state_dir,
    analysis_dir,
    cache_dir,
    debug_level,
    every_jobs_dir,
    jobs_dir_of,
    preparation,
    site_state_dir,
    state_dir,
    use_keras_2_for_tensorflow,
    use_torch_for_keras,
)
from csrun.context.job import Host, Hosts, JobFile, Role, TaskEntry, Telemetry
from csrun.context.link import JobLink, Progress, SpawnWafer, TaskReport, TaskReportKind
from csrun.context.rerun import Rerun, keep_arguments, keep_command, own_command, rerun
from csrun.context.task import (
    TaskContext,
    Terminated,
    current,
    interpreter_mode,
    interpreter_options,
)

__all__ = [
    "DebugLevel",
    "Host",
    "Hosts",
    "JobFile",
    "JobLink",
    "Preparation",
    "Progress",
    "Rerun",
    "Role",
    "SpawnWafer",
    "TaskContext",
    "TaskEntry",
    "TaskReport",
    "TaskReportKind",
    "Telemetry",
    "Terminated",
    "account_state_dir",
    "analysis_dir",
    "cache_dir",
    "current",
    "debug_level",
    "every_jobs_dir",
    "interpreter_mode",
    "interpreter_options",
    "jobs_dir_of",
    "keep_arguments",
    "keep_command",
    "own_command",
    "preparation",
    "rerun",
    "site_state_dir",
    "state_dir",
    "use_keras_2_for_tensorflow",
    "use_torch_for_keras",
]
