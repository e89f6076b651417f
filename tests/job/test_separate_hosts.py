"""Jobs whose nodes act as separate machines: over TCP, with the same bits."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from support.fc_mnist import MANY_STEPS, RUN, FcMnist, losses
from support.jobs import STALL_S, gone, until
from support.networks import Network, network
from support.sites import separate_site

STEPS = 60
STREAMING = ("--total-nodes", "4", "--tasks-per-node", "2", "--cpus-per-task", "1")
PIPELINED = ("--total-nodes", "2", "--tasks-per-node", "2", "--cpus-per-task", "1")
LAYOUTS = {"python-ws": STREAMING, "python": PIPELINED}


def on_own_machines(place: FcMnist) -> FcMnist:
    """Two streamers on one machine, two on a second, MemoryX on a third."""
    configure(place)
    separate_site(place.path)
    return place


def configure(place: FcMnist) -> None:
    place.configure(
        runconfig__max_steps=STEPS,
        runconfig__log_steps=1,
        runconfig__save_checkpoints_steps=STEPS // 2,
        runconfig__keep_checkpoint_max=STEPS,
    )


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model_dir of a training of STEPS on the CPU, and of an evaluation."""
    place = FcMnist(tmp_path_factory.mktemp("in_one_process"))
    configure(place)
    assert place.cpu().returncode == 0
    assert place.cpu("--mode", "eval").returncode == 0
    return place.model_dir


def train(
    place: FcMnist, interpreter: str, *options: str, script: str = RUN
) -> "subprocess.CompletedProcess[str]":
    """A training, or an evaluation, on the separate site, in the folder `tcp`."""
    layout = ("--site", "separate.yaml", *LAYOUTS[interpreter])
    return place.run(*layout, interpreter, script, *place.own(("-o", "tcp", *options)))


def assert_same(model_dir: Path, reference: Path) -> None:
    assert losses(model_dir) == losses(reference)
    names = sorted(path.name for path in reference.glob("*.safetensors"))
    assert names == sorted(path.name for path in model_dir.glob("*.safetensors"))
    for name in names:
        assert (model_dir / name).read_bytes() == (reference / name).read_bytes(), name


@pytest.mark.parametrize(  # a streamed training sends batches alike, and weights
    "interpreter", ["python-ws", pytest.param("python", marks=pytest.mark.slow)]
)
def test_the_same_bits_as_in_one_process(
    place: FcMnist, in_one_process: Path, interpreter: str
) -> None:
    """Of half of the steps, of those that go on from its checkpoint, and of an evaluation."""
    on_own_machines(place)
    done = train(place, interpreter, "--max_steps", str(STEPS // 2))
    assert done.returncode == 0, done.stderr
    streamers = {"python-ws": 4, "python": 3}[interpreter]  # pipelined, one is on the chief's node
    assert f"Waiting for {streamers} streamer(s)" in done.stdout
    assert len(losses(place.path / "tcp")) == STEPS // 2
    assert train(place, interpreter, "--mode", "train_and_eval").returncode == 0
    assert len(losses(place.path / "tcp")) == STEPS
    assert_same(place.path / "tcp", in_one_process)
    assert list(losses(place.path / "tcp" / "eval")) == [STEPS]
    assert losses(place.path / "tcp" / "eval") == losses(in_one_process / "eval")


@pytest.mark.slow
def test_layers_that_are_fetched_while_others_are_computed(place: FcMnist) -> None:
    """From one MemoryX, and from two, which go on from the first one's checkpoint."""
    on_own_machines(place)
    sizes, steps = [1750, 1750, 1750], 6
    place.configure(
        model__hidden_sizes=sizes, runconfig__max_steps=2 * steps, runconfig__log_steps=1
    )
    assert place.cpu("-o", "cpu").returncode == 0
    place.configure(model__hidden_sizes=sizes, runconfig__max_steps=steps, runconfig__log_steps=1)
    assert train(place, "python-ws").returncode == 0
    layout = ("--site", "separate.yaml", "--total-nodes", "5", *STREAMING[2:])
    more = ("--num_wgt_servers", "2", "--max_steps", f"{2 * steps}")
    done = place.run(*layout, "python-ws", RUN, *place.own(("-o", "tcp", *more)))
    assert done.returncode == 0, done.stderr
    assert re.search(r"Weight store: .* in memory, shared by 2 MemoryX tasks\n", done.stdout)
    assert losses(place.path / "tcp") == losses(place.path / "cpu")
    last = f"model-ckpt-{2 * steps}.safetensors"
    assert (place.path / "tcp" / last).read_bytes() == (place.path / "cpu" / last).read_bytes()


@pytest.mark.slow
def test_a_killed_task_is_named_and_its_job_ends(place: FcMnist) -> None:
    """One of two MemoryX tasks; tests/chaos kills a SwarmX task, and test_kill a wafer."""
    on_own_machines(place)
    place.configure(runconfig__max_steps=MANY_STEPS, runconfig__save_checkpoints_steps=50)
    layout = ("--num-wgt-servers", "2", "--total-nodes", "5", *STREAMING[2:])
    with place.start_wse(layout=("--site", "separate.yaml", *layout)) as job:
        until(place.checkpoint(100).exists)
        pids = place.processes(job.pid)
        os.kill(pids["rank-00002"], signal.SIGKILL)
        _, err = job.communicate(timeout=STALL_S)
    assert job.returncode == 128 + signal.SIGKILL
    cause = "rank 2 (memoryx) on node3 was killed by signal 9 (SIGKILL)"
    assert f"csrun_wse: error: {cause}" in err
    assert gone(list(pids.values()))


def test_an_address_that_is_not_the_nodes_is_named(place: FcMnist) -> None:
    """192.0.2.0/24 is for documentation: nobody has it (RFC 5737)."""
    on_own_machines(place)
    separate_site(place.path, "192.0.2.{}".format)
    done = train(place, "python")
    assert done.returncode == 1
    assert "node node1: cannot listen on 192.0.2.1: " in done.stderr
    assert "Traceback" not in done.stderr


INTO_NETWORK = """
import ctypes, os
if os.environ["SLURMD_NODENAME"] != "node1":
    libc = ctypes.CDLL(None, use_errno=True)
    with open({!r}) as there:
        assert libc.setns(there.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
"""


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", LAYOUTS)
def test_two_hosts_of_a_network(place: FcMnist, in_one_process: Path, interpreter: str) -> None:
    """Network namespaces: neither sees the other's Unix sockets, and packets go from one to one."""
    with network() as hosts:
        inside = FcMnist(place.path, around=("nsenter", f"--net={hosts.first.file}"))
        on_own_machines(inside)
        separate_site(place.path, lambda n: (hosts.first if n == 1 else hosts.second).address)
        done = train(inside, interpreter, script=_script_that_enters(inside, hosts))
        assert done.returncode == 0, done.stderr
        assert hosts.bytes_sent() > STEPS * 128 * 784  # a batch has more than a byte a pixel
    assert_same(place.path / "tcp", in_one_process)


@pytest.mark.slow
def test_a_network_that_goes_down_ends_the_job(place: FcMnist) -> None:
    """No packet tells of it: the silence does."""
    with network() as hosts:
        inside = FcMnist(place.path, around=("nsenter", f"--net={hosts.first.file}"))
        on_own_machines(inside)
        inside.configure(runconfig__max_steps=MANY_STEPS, runconfig__save_checkpoints_steps=50)
        separate_site(place.path, lambda n: (hosts.first if n == 1 else hosts.second).address)
        script = _script_that_enters(inside, hosts)
        layout = ("--site", "separate.yaml", *STREAMING)
        with inside.start(*layout, "python-ws", script, *inside.own(())) as job:
            until(inside.checkpoint(100).exists)
            hosts.cut()
            out, err = job.communicate(timeout=STALL_S)
    assert job.returncode == 1
    assert "csrun_wse: error: lost the connection to " in err
    assert "Training interrupted: the next run in model_dir resumes from model-ckpt-" in out


def _script_that_enters(place: FcMnist, hosts: Network) -> str:
    script = place.copy()
    path = place.path / script
    path.write_text(INTO_NETWORK.format(hosts.second.file) + path.read_text())
    return script
