"""Output of sinfo and squeue: nodes, jobs, refusals, and jobs that a cluster can never run."""

import json

import msgspec
import pytest

from csrun.base.errors import CsrunError, UsageError
from csrun.base.mode import ExecutionMode
from csrun.jobs.overview import SystemStatus
from csrun.jobs.request import JobRequest
from csrun.launch.job_plan import JobPlan, plan
from csrun.launch.slurm import allocation, sinfo, squeue, submission
from csrun.launch.slurm.job_comment import LOST
from csrun.launch.srun import Resources, node_needs
from csrun.site import JobLayout, load
from csrun.system import Power, SystemState, save_state

PIPELINED = ExecutionMode.PIPELINED
SITE = msgspec.structs.replace(load("local"), gres="cs:{system}:1")
GRES = frozenset({"cs:cs2-01", "cs:cs2-02"})
SINFO = """\
node1|8|65536|mixed|cs:cs2-01:1(S:0),cs:cs2-02:1|all*
node1|8|65536|mixed|cs:cs2-01:1,cs:cs2-02:1|small
node2|4+|8000+|down*|(null)|all*
"""


def test_sinfo_is_read_a_node_at_a_time() -> None:
    assert sinfo.parse(SINFO) == (
        sinfo.Node("node1", 8, 64, "mixed", GRES, frozenset({"all*", "small"})),
        sinfo.Node("node2", 4, 7, "down*", frozenset(), frozenset({"all*"})),
    )


def squeue_answer(state: object, number: object = lambda n: n, **changes: object) -> str:
    """Output of squeue for a job of two components in `state`, from 100 s to 160 s."""
    assert callable(number)
    common = {"name": "digits", "user_name": "ada", "job_state": state, "het_job_id": number(7),
              "node_count": number(1), "tasks": number(1), "state_reason": "None",
              "submit_time": number(90), "start_time": number(100), "end_time": number(160),
              "tres_per_node": "gres:cs:cs2-02:1"}  # fmt: skip
    return json.dumps({"jobs": [
        common | {"job_id": 8, "het_job_offset": number(1), "nodes": "node[3-4]"} | changes,
        common | {"job_id": 7, "het_job_offset": number(0), "nodes": "node1"} | changes,
    ]})  # fmt: skip


@pytest.mark.parametrize(("state", "number"), [
    ("{}", lambda n: n),
    (["{}"], lambda n: {"set": True, "infinite": False, "number": n}),
])  # fmt: skip
def test_what_squeue_says_of_a_job(state: str | list[str], number: object) -> None:
    """For two versions of Slurm."""

    def told(word: str) -> squeue.SlurmJob:
        filled = word if isinstance(state, str) else [word]
        (job,) = squeue.parse(squeue_answer(filled, number), SITE)
        return job

    ended = told("COMPLETED")
    assert (ended.job_id, ended.nodes, ended.system) == (7, 2, "cs2-02")
    assert (ended.is_waiting, ended.is_running, ended.elapsed_s) == (False, False, 60)
    assert told("RUNNING").is_running
    assert told("RUNNING").elapsed_s > 60  # what squeue says of its end is its limit
    assert told("COMPLETING").is_running  # its nodes are not free yet
    assert (told("PENDING").is_waiting, told("PENDING").elapsed_s) == (True, 0)


def test_a_squeue_that_answers_with_errors_is_one_that_does_not_answer() -> None:
    """Exit code 0 and an empty list of jobs."""
    error = {"description": "Failed while looking for jobs", "error_number": -1,
             "error": "Unspecified error", "source": "slurm_load_jobs"}  # fmt: skip
    said = (
        r"does not answer: squeue: Failed while looking for jobs"
        r" \(slurm_load_jobs: Unspecified error\); check its controller with 'scontrol ping'"
    )
    with pytest.raises(CsrunError, match=said):
        squeue.parse(json.dumps({"errors": [error], "jobs": []}), SITE)
    with pytest.raises(CsrunError, match="squeue: not JSON"):
        squeue.parse("slurm", SITE)
    assert squeue.parse(json.dumps({"errors": [], "jobs": []}), SITE) == []


@pytest.mark.parametrize(("said", "kind"), [
    ("sbatch: error: Batch job submission failed: Invalid partition name specified", UsageError),
    ("slurm_load_partitions: Unable to contact slurm controller (connect failure)", CsrunError),
    ("sbatch: error: Munge encode failed: Failed to access \"x\"", CsrunError),
    ("", CsrunError),
])  # fmt: skip
def test_a_refusal_is_not_an_outage(said: str, kind: type[CsrunError]) -> None:
    error = sinfo.explain(said, SITE)
    assert type(error) is kind
    assert ("refused by Slurm: Batch job submission failed" in str(error)) == (kind is UsageError)
    assert ("does not answer" in str(error)) == (kind is CsrunError)


def test_what_a_job_waits_for_is_named() -> None:
    change = {"state_reason": "ReqNodeNotAvail",
              "state_description": "ReqNodeNotAvail, UnavailableNodes:node1"}  # fmt: skip
    (job,) = squeue.parse(squeue_answer("PENDING", **change), SITE)
    assert job.why == "waits for node1: drained, down or reserved"
    (job,) = squeue.parse(squeue_answer("PENDING", state_reason="Priority"), SITE)
    assert job.why == "waits for Priority"


def test_a_job_without_its_launcher_says_so() -> None:
    (job,) = squeue.parse(squeue_answer("RUNNING", comment=LOST), SITE)
    assert job.why == "csrun: launcher lost"
    (job,) = squeue.parse(squeue_answer("RUNNING", comment="the user's own"), SITE)
    assert job.why == ""


@pytest.mark.parametrize(("state", "said"), [
    ("idle", ""), ("mixed", ""), ("drained", "node1 is DRAINED"), ("down*", "node1 is DOWN*"),
    ("idle*", "node1 is IDLE*"), ("draining", "node1 is DRAINING"),
])  # fmt: skip
def test_a_system_whose_nodes_take_no_jobs_is_not_available(state: str, said: str) -> None:
    found = sinfo.parse(SINFO.replace("mixed", state))
    assert sinfo.unavailable(found, "cs:cs2-01:1") == said
    assert sinfo.unavailable(found, None) == ""


@pytest.mark.parametrize(("layout", "gres", "said"), [
    (JobLayout(3, 1, 1, 0, False), None, "use --total-nodes 2"),
    (JobLayout(2, 3, 2, 0, False), None, "needs 2 nodes of 6 CPUs, the cluster has 1"),
    (JobLayout(2, 1, 4, 1, False), None, "needs 1 nodes of 128 CPUs, the cluster has 0"),
    (JobLayout(2, 1, 1, 0, False), "cs:cs2-03:1", "no node of the cluster has cs:cs2-03:1"),
])  # fmt: skip
def test_what_the_cluster_never_can_run(
    layout: JobLayout, gres: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinfo, "query", lambda site, *command: SINFO)
    with pytest.raises(UsageError, match=said):
        sinfo.check(layout, SITE, gres)
    sinfo.check(JobLayout(2, 2, 2, 0, False), SITE, "cs:cs2-02:1")


def test_the_checks_look_at_the_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [*SINFO.splitlines(), "node3|64|65536|idle|(null)|big"]
    monkeypatch.setattr(sinfo, "query", lambda site, *command: "\n".join(rows))
    two = JobLayout(2, 2, 2, 0, False)
    sinfo.check(two, SITE, "cs:cs2-02:1", "small,big")
    with pytest.raises(UsageError, match="partition small of site local has 1 nodes"):
        sinfo.check(two, SITE, None, "small")
    with pytest.raises(UsageError, match="no node of partition big has cs:cs2-02:1"):
        sinfo.check(JobLayout(1, 1, 1, 0, False), SITE, "cs:cs2-02:1", "big")
    with pytest.raises(UsageError, match="partition all of site local has 2 nodes"):
        sinfo.check(JobLayout(3, 1, 1, 0, False), SITE, None)  # its default one
    with pytest.raises(UsageError, match="no partition bgi in Slurm, known: all, big, small"):
        sinfo.check(two, SITE, None, "bgi")


def test_whether_a_users_job_carries_a_layout() -> None:
    needs = node_needs(JobLayout(5, 3, 2, 2, False), 8)
    assert needs == [(1, 8), (1, 8), (3, 6)]
    assert node_needs(JobLayout(3, 3, 2, 0, False), 8) == [(1, 6), (2, 6)]
    assert node_needs(JobLayout(1, 3, 2, 0, False), 8) == [(1, 6)]
    own = [
        squeue.JobComponent(1, 8, "gres:cs:cs2-02:1"),
        squeue.JobComponent(1, 8, ""),
        squeue.JobComponent(3, 24, ""),
    ]
    assert allocation.lacks(own, needs) == ""
    assert allocation.lacks([squeue.JobComponent(5, 40, "")], needs) == ""
    assert allocation.lacks([squeue.JobComponent(5, 30, "")], needs).startswith(
        "has 6 CPUs per node, the tasks"
    )
    assert allocation.lacks([squeue.JobComponent(4, 32, "")], needs).startswith(
        "has 4 nodes, the layout"
    )
    assert allocation.lacks(own[:2], needs).startswith("has 2 components, the layout needs 3")
    fewer = [*own[:2], squeue.JobComponent(2, 16, "")]
    assert allocation.lacks(fewer, needs).startswith("has 2 nodes in component 2, the layout")
    assert allocation.lacks([], needs).startswith("has 0 components")
    held = [allocation.holds(own, gres) for gres in ("cs:cs2-02:1", "cs:cs2-02", "cs:cs2-01:1")]
    assert held == [True, True, False]
    assert allocation.holds([squeue.JobComponent(1, 8, "gres/cs:cs2-02")], "cs:cs2-02:1")
    assert not allocation.holds([], "cs:cs2-02:1")


def test_the_components_of_one_job_in_their_order() -> None:
    text = squeue_answer("RUNNING", cpus=4)
    assert squeue.parse_parts(text, SITE, 7) == [squeue.JobComponent(1, 4, "gres:cs:cs2-02:1")] * 2
    assert squeue.parse_parts(text, SITE, 8) == []


def test_without_a_name_the_system_with_the_fewest_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    systems = tuple(msgspec.structs.replace(s, mode=PIPELINED) for s in SITE.systems)
    site = msgspec.structs.replace(SITE, systems=systems)
    found = [
        SystemStatus("cs2-01", "", PIPELINED, Power.ACTIVE, 1, (3,)),
        SystemStatus("cs2-02", "", PIPELINED, Power.ACTIVE, 2, ()),
    ]
    monkeypatch.setattr(squeue, "systems", lambda site: found)

    def asked(*words: str) -> tuple[str, ...]:
        request = JobRequest(("python", "run.py", *words), 1)
        return submission.systems_for(plan(request, site, (0,)), site)

    assert asked() == ("cs2-02",)
    said = "requesting cs2-02 (fewest jobs: cs2-01 2, cs2-02 1)"
    assert capsys.readouterr().err == f"csrun_wse: {said}\n"
    assert asked("--cs_ip", "cs2-01") == ("cs2-01",)
    assert asked("--compile_only") == ()
    assert capsys.readouterr().err == ""


STREAMING = ExecutionMode.WEIGHT_STREAMING
CLUSTER = load("streaming-8")
FOUR = msgspec.structs.replace(CLUSTER, gres=SITE.gres, systems=CLUSTER.systems[:4])


def plan_of(*words: str) -> JobPlan:
    return plan(JobRequest(("python-ws", "run.py", *words), 4, 1, 1), FOUR, (0,))


def test_several_systems_are_those_with_the_fewest_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    waiting = {"cs2-01": (1, 2), "cs2-02": (), "cs2-03": (1,), "cs2-04": ()}
    found = [
        SystemStatus(name, "", STREAMING, Power.ACTIVE, None, jobs)
        for name, jobs in waiting.items()
    ]
    monkeypatch.setattr(squeue, "systems", lambda site: found)
    assert submission.systems_for(plan_of("--num_csx", "2"), FOUR) == ("cs2-02", "cs2-04")
    assert "requesting cs2-02, cs2-04 (fewest jobs: cs2-01 2, " in capsys.readouterr().err
    named = ("--num_csx", "2", "--cs_ip", "cs2-01")
    assert submission.systems_for(plan_of(*named), FOUR) == ("cs2-01", "cs2-02")
    save_state(FOUR, FOUR.systems[1], SystemState(Power.STANDBY, STREAMING))
    assert submission.systems_for(plan_of("--num_csx=2"), FOUR) == ("cs2-04", "cs2-03")
    said = "at most 3, got 5: site streaming-8 has 4 CS systems: cs2-02 is in STANDBY"
    with pytest.raises(UsageError, match=said):
        submission.systems_for(plan_of("--num_csx=5"), FOUR)


def test_where_all_systems_are_asked_for_nobody_need_be_asked(
    monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.delattr(squeue, "systems")
    names = ("cs2-01", "cs2-02", "cs2-03", "cs2-04")
    assert submission.systems_for(plan_of("--num_csx=4"), FOUR) == names


TWO = "gres:cs:cs2-01:1,gres:cs:cs2-03:1"


@pytest.mark.parametrize(
    ("job_state", "of_each"), [("RUNNING", (7, ())), ("PENDING", (None, (7,)))]
)
def test_a_job_is_on_each_of_its_systems(
    job_state: str,
    of_each: tuple[int | None, tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
    state: str,
) -> None:
    said = {"squeue": squeue_answer(job_state, tres_per_node=TWO), "sinfo": SINFO}
    monkeypatch.setattr(sinfo, "query", lambda site, *command: said[command[0]])
    (job,) = squeue.jobs(FOUR)
    assert (job.systems, job.system) == (("cs2-01", "cs2-03"), "cs2-01, cs2-03")
    on = [(each.job, each.waiting) for each in squeue.systems(FOUR)]
    assert on == [of_each, (None, ()), of_each, (None, ())]


def test_the_systems_of_a_job_must_be_one_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    layout, both = JobLayout(2, 1, 1, 0, False), SITE.gres_of("cs2-01", "cs2-02")
    monkeypatch.setattr(sinfo, "query", lambda site, *command: SINFO)
    sinfo.check(layout, SITE, both)
    lines = [f"node{n}|8|65536|idle|cs:cs2-0{n}:1|all*" for n in (1, 2)]
    monkeypatch.setattr(sinfo, "query", lambda site, *command: "\n".join(lines))
    sinfo.check(layout, SITE, "cs:cs2-02:1")
    said = (
        "a job's systems must be on one node, and none of the cluster has cs:cs2-01:1 and"
        " cs:cs2-02:1: node1 has cs:cs2-01; node2 has cs:cs2-02"
    )
    with pytest.raises(UsageError, match=said):
        sinfo.check(layout, SITE, both)
    with pytest.raises(UsageError, match="has cs:cs2-03:1, known: cs:cs2-01, cs:cs2-02; gres"):
        sinfo.check(layout, SITE, "cs:cs2-01:1,cs:cs2-03:1")


@pytest.mark.parametrize(("words", "expected"), [
    ((), ("cs2-01",)),
    (("--num_csx=2",), ("cs2-01", "cs2-03")),
    (("--num_csx=2", "--cs_ip=cs2-03"), ("cs2-03", "cs2-01")),
    (("--num_csx=2", "--cs_ip=cs2-02"), "does not hold cs2-02 and 1 of cs2-01, cs2-03, cs2-04: "),
    (("--num_csx=3",), "does not hold 3 of cs2-01, cs2-02, cs2-03, cs2-04: "),
    (("--num_csx=5",), "must be at most 4, got 5: site streaming-8 has 4 CS systems"),
])  # fmt: skip
def test_the_systems_of_a_users_job(
    words: tuple[str, ...], expected: tuple[str, ...] | str,
    monkeypatch: pytest.MonkeyPatch, state: str,
) -> None:  # fmt: skip
    whole = squeue_answer("RUNNING", tres_per_node=TWO, node_count=4, cpus=512, het_job_id=0,
                          job_id=7)  # fmt: skip
    monkeypatch.setattr(sinfo, "query", lambda site, *command: whole)
    monkeypatch.setattr(allocation, "parts", lambda *_: squeue.parse_parts(whole, FOUR, 7)[:1])
    monkeypatch.setattr(allocation, "reason_to_wait_for_job", lambda *_: "")

    def around() -> tuple[str, ...]:
        job_plan = plan_of(*words)
        return allocation.around(7, job_plan, FOUR, lambda gres: Resources(gres)).systems

    if isinstance(expected, tuple):
        assert around() == expected
        return
    with pytest.raises(UsageError, match=expected) as refused:
        around()
    if "does not hold" in expected:
        asked = {"--num_csx=3": "cs:cs2-01:1,cs:cs2-02:1,cs:cs2-03:1"}.get(words[0], "cs:cs2-02:1,")
        assert f" --gres={asked}" in str(refused.value)
