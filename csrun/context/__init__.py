"""What a task knows of itself: rank, role, the job's folder, the way to its launcher."""

from csrun.context.debug import DebugLevel, debug_level
from csrun.context.environment import analysis_dir
from csrun.context.interpreter import interpreter_mode, interpreter_options
from csrun.context.job import Host, Hosts, JobFile, Role, TaskEntry, Telemetry
from csrun.context.link import JobLink, Progress, SpawnWafer, TaskReport, TaskReportKind
from csrun.context.paths import jobs_dir_of, site_state_dir, state_dir
from csrun.context.task import TaskContext, current
from csrun.context.terminated import Terminated

__all__ = [
    "DebugLevel",
    "Host",
    "Hosts",
    "JobFile",
    "JobLink",
    "Progress",
    "Role",
    "SpawnWafer",
    "TaskContext",
    "TaskEntry",
    "TaskReport",
    "TaskReportKind",
    "Telemetry",
    "Terminated",
    "analysis_dir",
    "current",
    "debug_level",
    "interpreter_mode",
    "interpreter_options",
    "jobs_dir_of",
    "site_state_dir",
    "state_dir",
]
