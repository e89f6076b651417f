"""CPUs of a program, and the threads of its steps."""

import msgspec
import pytest
from support.programs import Network, options_of
from threadpoolctl import threadpool_info

from csrun.base.run_config import RunSettings
from csrun.compiler import compile_model
from csrun.data import Dataset
from csrun.executable import machine_code, threads
from csrun.executable.threads import Threads, threads_of
from csrun.runtime import cpus
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.cpus import cpus_of
from csrun.runtime.wire.messages import StepOrder


@pytest.fixture
def three_cpus(monkeypatch):
    monkeypatch.setattr(cpus, "thread_count", lambda: 3)


def compiled(root, width=24, batch=8, **options):
    network = Network((width, width, 5), batch)
    return network, compile_model(network.trace(), root, options_of(**options)).executable


@pytest.mark.parametrize(("most", "count"), [(None, 3), (2, 2), (1, 1), (8, 3)])
def test_a_program_has_the_cpus_of_the_task(tmp_path, three_cpus, most, count):
    _, executable = compiled(tmp_path)
    assert cpus_of(executable.plan, most) == count


def test_systems_divide_the_cpus(tmp_path, three_cpus):
    _, executable = compiled(tmp_path, systems=2)
    assert cpus_of(executable.plan) == 1


@pytest.mark.parametrize(("batch", "count"), [(4096, 3), (2048, 1)])
def test_blas_has_a_thread_for_each_cpu_from_a_gigaflop_on(tmp_path, batch, count):
    # 2 * 4096 * 300 * 300 FLOPs of the large layer forward, and as many of its weight gradient
    _, executable = compiled(tmp_path, width=300, batch=batch)
    assert threads_of(executable.plan, 3) == Threads(kernels=1, blas=count)


@pytest.mark.parametrize(("batch", "count"), [(512, 3), (256, 1)])
def test_machine_code_has_a_thread_for_each_cpu_in_smaller_steps(tmp_path, batch, count):
    pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
    _, executable = compiled(tmp_path, width=300, batch=batch, kernels="llvm")
    assert threads_of(executable.plan, 3) == Threads(kernels=count, blas=1)


def test_threads_are_of_what_computes_most_of_the_flops(tmp_path, monkeypatch):
    pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
    _, executable = compiled(tmp_path, width=300, batch=4096, kernels="llvm")
    few = msgspec.structs.replace(executable.plan, machine_code_share=0.3)
    assert threads_of(few, 3) == Threads(kernels=1, blas=3)
    monkeypatch.setattr(machine_code, "is_supported", lambda: False)
    assert threads_of(executable.plan, 3) == Threads(kernels=1, blas=3)


@pytest.mark.parametrize(("most", "count"), [(None, 3), (2, 2)])
def test_a_step_runs_on_them_and_the_users_setting_comes_back(
    tmp_path, three_cpus, monkeypatch, most, count
):
    monkeypatch.setattr(threads, "LEAST_FLOPS_OF_BLAS", 0)
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
    """The number of threads of NumPy's BLAS; other tests may have loaded that of SciPy."""
    blas = (found for found in threadpool_info() if found["user_api"] == "blas")
    return {found["num_threads"] for found in blas if "numpy" in found["filepath"]}
