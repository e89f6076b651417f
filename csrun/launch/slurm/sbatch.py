"""Scripts for sbatch: a job, and the compile before it; csrun_wse does not wait for them."""

import shlex
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from csrun.context import environment
from csrun.jobs import job_labels
from csrun.jobs.request import JobRequest
from csrun.launch.job_plan import JobPlan, PlannedTask
from csrun.launch.slurm import options, records, sinfo
from csrun.launch.srun import Resources, batch_script
from csrun.site import JobLayout, Site

COMPILE_ONLY = "--compile_only"
_END = "END_OF_CSRUN_SCRIPT"


def resources_of(
    request: JobRequest, gres: str | None, site: Site, given: options.SlurmOptions
) -> Resources:
    """Return a job's request to Slurm without the layout; the default name is the script's."""
    limit_s = request.options.time_limit_s
    return Resources(
        gres,
        site.nodes.cpus,
        request.name,
        limit_s,
        site.grace_s,
        given.every,
        given.first,
        given.by_component,
    )


@dataclass(frozen=True)
class BatchJob:
    """A job to submit, with its script."""

    request: JobRequest
    job_plan: JobPlan
    script: str

    def submit(self, site: Site, *arguments: str) -> str:
        """Submit and record the job; return its number.

        Raises: UsageError if sbatch refuses it; CsrunError if Slurm does not answer
        """
        number = _sbatch(self.script, site, *arguments)
        nodes, tasks = self.job_plan.layout.nodes, len(self.job_plan.tasks)
        records.record_pending(site, self.request, int(number), nodes, tasks)
        return number


@dataclass(frozen=True)
class Submission:
    """A job to submit, preceded by its compile if there is one."""

    job: BatchJob
    compiling: BatchJob | None = None

    def submit(self, site: Site) -> int:
        """Submit all jobs; return 0 if all were accepted. Raises: as `BatchJob.submit`"""
        after: tuple[str, ...] = ()
        if self.compiling is not None:
            number = self.compiling.submit(site)
            print(f"Submitted batch job {number} (compile)")
            after = _after(number)
        print(f"Submitted batch job {self.job.submit(site, *after)}")
        return 0

    def text(self) -> str:
        """Return a file that submits the same: for sbatch, or for sh if there are two scripts."""
        if self.compiling is None:
            return self.job.script
        after = " ".join(_after('"${number%%;*}"'))
        return (
            "#!/bin/sh\nset -e\n"
            f"number=$(sbatch --parsable <<'{_END}'\n{self.compiling.script}{_END}\n)\n"
            'echo "Submitted batch job ${number%%;*} (compile)"\n'
            f"sbatch {after} <<'{_END}'\n{self.job.script}{_END}\n"
        )


def submission(
    request: JobRequest,
    job_plan: JobPlan,
    site: Site,
    resources: Resources,
    systems: tuple[str, ...],
) -> Submission:
    """Return a job to submit.

    The compile waits for the user's --dependency, and the job for its compile.
    """
    if not request.compile_first:
        text = script(request, job_plan, resources, systems, site.prolog)
        return Submission(BatchJob(request, job_plan, text))
    compiling, compile_plan = compile_job(request, job_plan)
    own = replace(resources, gres=None, job_name=compiling.name)
    compile_script = script(compiling, compile_plan, own, (), site.prolog)
    first = tuple(each for each in resources.first if not each.startswith("--dependency="))
    text = script(request, job_plan, replace(resources, first=first), systems, site.prolog)
    return Submission(
        BatchJob(request, job_plan, text), BatchJob(compiling, compile_plan, compile_script)
    )


def script(
    request: JobRequest,
    job_plan: JobPlan,
    resources: Resources,
    systems: tuple[str, ...],
    prolog: tuple[str, ...] = (),
) -> str:
    """Return the script that requests the job's nodes and runs the same csrun_wse on the first
    one.
    """
    layout = job_plan.layout
    own = (str(Path(sys.executable).with_name("csrun_wse")), *_options(request, layout))
    command = (*environment.allocation_command(systems), *own, *job_plan.command)
    return batch_script(layout, command, resources, prolog)


def resume_line(request: JobRequest, layout: JobLayout) -> str:
    """Return the command that submits a job again, without Slurm options."""
    own = ("csrun_wse", "--sbatch", *_options(request, layout))
    return shlex.join((*own, *request.command))


def _after(job_id: str) -> tuple[str, str]:
    # Without the second option a job stays queued without end after a failed compile.
    return f"--dependency=afterok:{job_id}", "--kill-on-invalid-dep=yes"


def compile_job(request: JobRequest, job_plan: JobPlan) -> tuple[JobRequest, JobPlan]:
    """Return the request of the compile job: only the chief, on one node."""
    chief = job_plan.tasks[0]
    command = (*job_plan.command, COMPILE_ONLY)
    layout = JobLayout(1, 1, len(chief.cpus), 0, cyclic=False)
    alone = PlannedTask(0, chief.role, 0, 0, chief.cpus)
    compiling = replace(
        request, command=command, compile_first=False, sbatch=False, num_wgt_servers=None
    )
    return compiling, replace(job_plan, command=command, layout=layout, tasks=(alone,))


def _options(request: JobRequest, layout: JobLayout) -> list[str]:
    numbers = {
        "--total-nodes": layout.nodes,
        "--tasks-per-node": layout.tasks_per_node,
        "--cpus-per-task": layout.cpus_per_task,
        "--single-task-nodes": layout.single_task_nodes,
    }
    arguments = [f"{name}={number}" for name, number in numbers.items()]
    arguments += [f"--site={request.site}"]
    arguments += [f"--mount-dirs={','.join(request.mount_dirs)}"] if request.mount_dirs else []
    arguments += ["--cyclic"] if layout.cyclic else []
    servers = request.num_wgt_servers
    arguments += [f"--num-wgt-servers={servers}"] if servers else []
    arguments += [f"--max-restarts={request.max_restarts}"] if request.max_restarts else []
    options = request.options
    arguments += [f"--job-name={options.job_name}"] if options.job_name else []
    # as minutes:seconds, since the limit may not be a whole number of minutes
    arguments += [f"--time-limit=0:{options.time_limit_s}"] if options.time_limit_s else []
    arguments += [f"--output={options.output}"] if options.output else []
    arguments += [f"--job-labels={job_labels.text(options.labels)}"] if options.labels else []
    return [*arguments, "--label"] if request.label else arguments


def _sbatch(text: str, site: Site, *arguments: str) -> str:
    done = subprocess.run(
        ("sbatch", "--parsable", *arguments),
        input=text,
        env=environment.for_sbatch(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise sinfo.explain(done.stderr, site)
    return shlex.split(done.stdout.replace(";", " "))[0]
