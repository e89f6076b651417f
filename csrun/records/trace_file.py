"""Trace of steps as a file for Perfetto.

Source: Trace Event Format, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU,
sections JSON Object Format, Complete Events and Metadata Events
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from csrun.base.files import find, write_atomic, writing
from csrun.base.open_folder import open_folder

FOLDER = "trace"


@dataclass(frozen=True)
class Span:
    """Activity of a process; track: row in the display. Units: nanoseconds since the epoch"""

    track: str
    name: str
    began_ns: int
    ended_ns: int


@dataclass(frozen=True)
class Process:
    """A process of the run, and its spans."""

    name: str
    spans: tuple[Span, ...]


def path_of(model_dir: Path, first: int, last: int, is_whole: bool = True) -> Path:
    """Return the path of the trace of these steps, or of the steps that a failed run reached."""
    return model_dir / FOLDER / f"steps_{first}_{last}{'' if is_whole else '_failed'}.json"


def write(path: Path, processes: Iterable[Process]) -> None:
    """Write the file atomically; its folder is created if missing.

    Raises: CsrunError if it cannot be written
    """
    processes = tuple(processes)
    began = [span.began_ns for process in processes for span in process.spans]
    # Perfetto reads microseconds as floats, which are exact only for small numbers.
    origin = min(began, default=0)
    found: list[dict[str, Any]] = []
    for number, process in enumerate(processes, 1):
        found += _events(process, number, origin)
    text = msgspec.json.encode({"traceEvents": found, "displayTimeUnit": "ms"})
    with writing(path), open_folder(path.parent) as folder:
        write_atomic(folder / path.name, text, durable=False)


def _events(process: Process, number: int, origin_ns: int) -> Iterator[dict[str, Any]]:
    yield _named("process_name", number, 0, process.name)
    tracks: dict[str, int] = {}
    for span in process.spans:
        if span.track not in tracks:
            tracks[span.track] = len(tracks) + 1
            yield _named("thread_name", number, tracks[span.track], span.track)
        yield {
            "ph": "X",
            "name": span.name,
            "cat": span.track,
            "pid": number,
            "tid": tracks[span.track],
            "ts": (span.began_ns - origin_ns) / 1e3,  # microseconds
            "dur": (span.ended_ns - span.began_ns) / 1e3,
        }


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


class _Event(msgspec.Struct, frozen=True):
    """Event of the file, with the fields that csrun writes. Units: ts, dur in microseconds"""

    ph: str
    name: str
    pid: int
    tid: int
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, str] = {}


class _Events(msgspec.Struct, frozen=True):
    traceEvents: tuple[_Event, ...]  # noqa: N815, the format's word


MOST_BYTES = 256 << 20  # bytes of a file; each process has at most 32,768 spans


def read(path: Path) -> tuple[Process, ...]:
    """Read a file written by `write`; times are relative to its first span.

    Raises: OSError; ValueError for other content
    """
    events = msgspec.json.decode(find(path, MOST_BYTES).data, type=_Events).traceEvents
    names = {
        e.pid: e.args.get("name", "") for e in events if e.ph == "M" and e.name == "process_name"
    }
    spans: dict[int, list[Span]] = {number: [] for number in names}
    for event in events:
        if event.ph == "X" and event.pid in spans:
            began, ended = event.ts * 1e3, (event.ts + event.dur) * 1e3
            spans[event.pid].append(Span(event.cat, event.name, round(began), round(ended)))
    return tuple(Process(names[number], tuple(found)) for number, found in spans.items())
