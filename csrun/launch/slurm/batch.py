"""Jobs that csrun_wse does not wait for: scripts for sbatch, and the compile before a job."""

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from csrun.context import environment
from csrun.jobs.request import JobRequest
from csrun.launch.plan import JobPlan, PlannedTask
from csrun.launch.slurm import sinfo
from csrun.launch.srun import Resources, batch_script
from csrun.site import JobLayout, Site

COMPILE_ONLY = "--compile_only"


def resources_of(request: JobRequest, gres: str | None, site: Site) -> Resources:
    """What a job asks Slurm for beside its layout; its name is its script's unless it has one."""
    return Resources(
        gres, site.nodes.cpus, request.name, request.options.time_limit_s, site.grace_s
    )


def submit(
    request: JobRequest, job_plan: JobPlan, site: Site, resources: Resources, system: str | None
) -> int:
    """Hand the job's script to sbatch, after that of its compile; 0 when both were taken.

    Raises: CsrunError when sbatch refuses
    """
    after: tuple[str, ...] = ()
    if request.compile_first:
        compiling = _sbatch(
            script(*compile_job(request, job_plan), resources_of(request, None, site), None), site
        )
        print(f"Submitted batch job {compiling}, which compiles")
        after = (f"--dependency=afterok:{compiling}", "--kill-on-invalid-dep=yes")
    job_id = _sbatch(script(request, job_plan, resources, system, after), site)
    print(f"Submitted batch job {job_id}")
    return 0


def script(
    request: JobRequest,
    job_plan: JobPlan,
    resources: Resources,
    system: str | None,
    directives: tuple[str, ...] = (),
) -> str:
    """The script that asks for the job's nodes and runs the same csrun_wse on the first of them."""
    layout = job_plan.layout
    own = (str(Path(sys.executable).with_name("csrun_wse")), *_options(request, layout))
    given = f"{environment.ALLOCATION}={system or environment.NO_SYSTEM}"
    return batch_script(layout, ("env", given, *own, *job_plan.command), resources, directives)


def compile_job(request: JobRequest, job_plan: JobPlan) -> tuple[JobRequest, JobPlan]:
    """The job that only compiles: its chief, alone on one node."""
    chief = job_plan.tasks[0]
    command = (*job_plan.command, COMPILE_ONLY)
    layout = JobLayout(1, 1, len(chief.cpus), 0, cyclic=False)
    alone = PlannedTask(0, chief.role, 0, 0, chief.cpus)
    compiling = replace(request, command=command, compile_first=False, sbatch=False)
    return compiling, JobPlan(command, job_plan.mode, layout, (alone,), job_plan.grace_s)


def _options(request: JobRequest, layout: JobLayout) -> list[str]:
    numbers = {
        "--total-nodes": layout.nodes,
        "--tasks-per-node": layout.tasks_per_node,
        "--cpus-per-task": layout.cpus_per_task,
        "--single-task-nodes": layout.single_task_nodes,
    }
    words = [f"{name}={number}" for name, number in numbers.items()]
    words += [f"--site={request.site}"]
    words += [f"--mount-dirs={','.join(request.mount_dirs)}"] if request.mount_dirs else []
    words += ["--cyclic"] if layout.cyclic else []
    words += [f"--max-restarts={request.max_restarts}"] if request.max_restarts else []
    options = request.options
    words += [f"--job-name={options.job_name}"] if options.job_name else []
    words += [f"--time-limit=0:{options.time_limit_s}"] if options.time_limit_s else []
    words += [f"--output={options.output}"] if options.output else []
    return [*words, "--label"] if request.label else words


def _sbatch(text: str, site: Site) -> str:
    done = subprocess.run(
        ("sbatch", "--parsable"), input=text, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise sinfo.explain(done.stderr, site)
    return shlex.split(done.stdout.replace(";", " "))[0]
