"""Compile stages in the progress display: when they are shown."""

from dataclasses import dataclass, field
from threading import Timer

from support.jobs import until

from csrun.context import Progress
from csrun.estimator import progress


@dataclass
class Launcher:
    """Stand-in for a task's context and its link, which keeps what is sent."""

    shown: list[Progress] = field(default_factory=list)

    def link(self):
        return self

    def progress(self, progress):
        self.shown.append(progress)

    def close(self):
        pass


def test_a_short_compile_shows_nothing(monkeypatch):
    monkeypatch.setattr(progress, "APPEARS_AFTER_S", 60.0)
    launcher = Launcher()
    with progress.compile_display(launcher) as begin:
        begin("gradient")
        begin("matching")
    assert not launcher.shown


def test_the_stage_that_runs_appears_without_another_beginning(monkeypatch):
    timers = []

    def timer(after_s, call):
        timers.append(Timer(after_s, call))
        return timers[-1]

    monkeypatch.setattr(progress, "Timer", timer)
    launcher = Launcher()
    with progress.compile_display(launcher) as begin:
        begin("gradient")
        begin("matching")
        (started,) = timers
        started.function()
        begin("placing")
    *stages, end = launcher.shown
    assert [(p.done, p.text) for p in stages] == [(1, "matching"), (2, "placing")]
    assert end.done == end.total > 2  # which takes the bar down


def test_a_compile_that_fails_takes_its_bar_down(monkeypatch):
    monkeypatch.setattr(progress, "APPEARS_AFTER_S", 0.0)
    launcher = Launcher()
    try:
        with progress.compile_display(launcher) as begin:
            begin("matching")
            until(lambda: launcher.shown)
            raise ValueError
    except ValueError:
        pass
    assert launcher.shown[-1].done == launcher.shown[-1].total
