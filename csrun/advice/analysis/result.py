"""Result of an analysis, for its reports and as JSON."""

from pathlib import Path

import msgspec

from csrun.advice.analysis.bottleneck import BottleneckStage, Limiting, limiting, stages_of
from csrun.advice.analysis.laws import Fit
from csrun.advice.analysis.scaling import Saturation, Scaling, SiteFacts, StreamerLayout
from csrun.advice.analysis.solve import FeedTarget, Solution, solve
from csrun.advice.measurements import BackgroundUse, DeliveredRate, Measurements
from csrun.base.files import write_atomic

JSON_FILE = "input_analysis.json"


class VerifiedLayout(msgspec.Struct, frozen=True):
    """Run of a layout: its rate, and the deviation from the prediction.

    deviation: measured / predicted - 1. `beside` has the CPU use of other processes.
    """

    layout: StreamerLayout
    fed: DeliveredRate
    deviation: float
    beside: BackgroundUse


class Analysis(msgspec.Struct, frozen=True):
    """Analysis of an input pipeline. launch: command line of the recommended job."""

    command: tuple[str, ...]
    launch: tuple[str, ...]
    site: SiteFacts
    target: FeedTarget
    stages: tuple[BottleneckStage, ...]
    limiting: Limiting | None
    fits: tuple[Fit, ...]
    saturation: Saturation
    solution: Solution
    measurements: Measurements
    verified: VerifiedLayout | None = None

    @property
    def fit(self) -> Fit:
        """Law of the recommended layout's tasks."""
        cpus = self.solution.layout.cpus_per_task
        return next(fit for fit in self.fits if fit.cpus == cpus)

    @property
    def concurrent_streamers(self) -> int:
        """Number of recommended streamers that the law is applied to at once."""
        layout = self.solution.layout
        shared = self.site.one_machine or self.saturation.spans_nodes
        return layout.streamers if shared else layout.tasks_per_node

    @property
    def left(self) -> float:
        """Fraction of the law's rates left by other work on the machines of the job."""
        return self.fit.left if self.site.one_machine else 1.0

    @property
    def extrapolated(self) -> bool:
        """True if these are more than were measured."""
        return self.concurrent_streamers > self.fit.most_tasks

    @property
    def link(self) -> float:
        """Samples/s of the system's link."""
        return self.site.link_bytes_per_s / self.measurements.sample_bytes

    def write(self, folder: Path) -> Path:
        """Write the analysis to a folder as JSON, and return the path."""
        path = folder / JSON_FILE
        write_atomic(path, self.json(), durable=False)
        return path

    def json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def analyze(
    measured: Measurements,
    site: SiteFacts,
    target: FeedTarget,
    command: tuple[str, ...],
    launcher: tuple[str, ...],
) -> Analysis:
    """Fit the laws, solve for a layout, and find its limit. launcher: further options of csrun_wse.

    Raises: ValueError for a site with fewer nodes than the job needs
    """
    scaling = Scaling(measured, site)
    solution = solve(scaling, target, measured.streaming, site.nodes)
    saturation = scaling.saturation(solution.layout.cpus_per_task)
    stages = stages_of(measured)
    return Analysis(
        command=command,
        launch=_launch(solution.layout, launcher, command),
        site=site,
        target=target,
        stages=stages,
        limiting=limiting(stages, saturation, solution.limit, measured.parallel, solution.missing),
        fits=scaling.fits,
        saturation=saturation,
        solution=solution,
        measurements=measured,
    )


def _launch(
    layout: StreamerLayout, launcher: tuple[str, ...], command: tuple[str, ...]
) -> tuple[str, ...]:
    numbers = {
        "--total-nodes": layout.nodes,
        "--tasks-per-node": layout.tasks_per_node,
        "--cpus-per-task": layout.cpus_per_task,
    }
    words = [word for name, number in numbers.items() for word in (name, str(number))]
    return ("csrun_wse", *words, *launcher, *command)
