"""Number of threads of a step's products."""

import pytest
from support.programs import Network, options_of
from threadpoolctl import threadpool_info

from csrun.base.run_config import RunSettings
from csrun.compiler import compile_model
from csrun.data import Dataset
from csrun.runtime import threads
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.threads import threads_of
from csrun.runtime.wire.messages import StepOrder


@pytest.fixture
def three_cpus(monkeypatch):
    monkeypatch.setattr(threads, "own_threads", lambda: 3)


def compiled(root, width=24, batch=8, **options):
    network = Network((width, width, 5), batch)
    return network, compile_model(network.trace(), root, options_of(**options)).executable


@pytest.mark.parametrize(("most", "count"), [(None, 3), (2, 2), (1, 1), (8, 3)])
def test_a_step_of_a_gigaflop_has_a_thread_for_each_cpu(tmp_path, three_cpus, most, count):
    # 2 * 4096 * 300 * 300 FLOPs of the large layer forward, and as many of its weight gradient
    _, executable = compiled(tmp_path, width=300, batch=4096)
    assert threads_of(executable.plan, most) == count


def test_a_smaller_step_has_one_thread(tmp_path, three_cpus):
    _, executable = compiled(tmp_path, width=300, batch=2048)
    assert threads_of(executable.plan) == 1


def test_systems_divide_the_cpus(tmp_path, three_cpus, monkeypatch):
    monkeypatch.setattr(threads, "LEAST_FLOPS", 0)
    _, executable = compiled(tmp_path, systems=2)
    assert threads_of(executable.plan) == 1


@pytest.mark.parametrize(("most", "count"), [(None, 3), (2, 2)])
def test_a_step_runs_on_them_and_the_users_setting_comes_back(
    tmp_path, three_cpus, monkeypatch, most, count
):
    monkeypatch.setattr(threads, "LEAST_FLOPS", 0)
    network, executable = compiled(tmp_path)
    seen, before = [], blas_threads()

    def observed(features, labels):
        seen.append(blas_threads())
        return features, labels

    data = Dataset.from_batches(network.batches(1)).repeat().map(observed)
    machine = CpuMachine(executable, data, RunSettings(threads=most), 0)
    machine.initialize()
    machine.run(StepOrder(0, 2))
    assert seen[-1] == {count}
    assert blas_threads() == before


def blas_threads():
    return {found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"}
