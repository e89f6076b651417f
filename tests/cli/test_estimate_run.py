"""csrun estimate: its table, and refusals."""

import sys
from pathlib import Path

import msgspec
import pytest

from csrun.cli.csrun import csrun
from csrun.cli.estimate_run import rows
from csrun.cli.frame import run
from csrun.records.run_estimate import ProductRate, RoleMemory, RunEstimate

FOUND = RunEstimate(
    mode="WEIGHT_STREAMING",
    batch_size=8,
    systems=1,
    parameters=1_500_000,
    layers=3,
    sram_bytes=40_000_000_000,
    wafer={"copies of weights": 2_000_000, "activations": 3_000_000},
    store={"weights": 6_000_000, "gradients": 1_000_000},
    store_on_disk=None,
    host=(RoleMemory("chief", 1, 9_000_000, "data"), RoleMemory("streamer", 2, 1_000_000, "ring")),
    host_available_bytes=10_000_000_000,
    checkpoint_bytes=6_000_000,
    checkpoint_s=0.02,
    step_s=0.5,
    step_spread=0.03,
    step_cpu_s=0.9,
    cpus=2,
    is_measured=True,
    products=(ProductRate("amx_bf16", 0.75, 8e11), ProductRate("own", 0.25, 2.5e11)),
    system_samples_per_s=4000.0,
    largest_batch=123,
    least_sram_bytes=6_000_000,
    max_steps=1000,
    limits="Limited by the input.",
    system_rates="Numbers count as 16-bit ones.",
)


def test_the_table_adds_up_and_says_what_a_run_takes() -> None:
    table = dict(rows(FOUND))
    assert table["model"] == "1,500,000 parameters in 3 layers"
    assert table["wafer memory"].startswith("5.0 MB of 40.0 GB: ")
    assert table["memory here"] == "11.0 MB of 10.0 GB free"
    assert table["  streamer"].startswith("2 x 1.0 MB")
    assert table["checkpoint"] == "6.0 MB, 20 ms"
    assert table["step here"] == "500 ms, 16 samples/s (measured, ± 3%)"
    shared = msgspec.structs.replace(FOUND, step_cpu_s=1.0)
    assert dict(rows(shared))["step here"].endswith(
        "; limited by the CPUs: all tasks need 1 s of CPU time, on 2 CPUs)"
    )
    assert table["step on a CS-2"] == "2 ms, 4,000 samples/s"
    assert table["products here"] == (
        "75% of the FLOPs in bfloat16 by AMX-BF16 at 800 GFLOP/s, 25% of the FLOPs in float32 at "
        "250 GFLOP/s"
    )
    assert table["CS-2's rates"] == "Numbers count as 16-bit ones."
    assert table["1,000 steps"] == "8:20 here, 2 s on a CS-2"
    assert table["largest batch"].startswith("123 samples")
    assert table["needs at least"] == "a wafer of 6.0 MB, a host of 1 GiB"


def test_what_is_computed_or_on_disk_is_said_so() -> None:
    found = msgspec.structs.replace(
        FOUND, is_measured=False, store_on_disk=2_000_000, largest_batch=None, max_steps=None
    )
    table = dict(rows(found))
    assert "computed" in table["step here"]
    assert table["MemoryX"] == "on disk, 2.0 MB of it in memory"
    assert table["largest batch"] == "any"
    short = msgspec.structs.replace(found, host_available_bytes=10_999_999)
    assert "too little" in dict(rows(short))["memory here"]
    assert "does not fit" not in table["memory here"]
    assert not any(name.endswith("steps") for name in table)


@pytest.mark.parametrize(
    ("nbytes", "gib"), [(10, 1), (900_000_000, 1), (1 << 30, 2), (15 << 30, 32), (14 << 30, 16)]
)
def test_the_host_is_of_a_size_that_is_built(nbytes: int, gib: int) -> None:
    found = msgspec.structs.replace(FOUND, host=(RoleMemory("chief", 1, nbytes, "data"),))
    assert found.host_gib == gib


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no command given"),
        ([sys.executable, "run.py"], "must only compile: append --compile_only"),
        (["python-ws", "rum.py"], "rum.py: no such file in "),
        (["pyton", "run.py"], "pyton: command not found; did you mean python?"),
        (["--streamers", "0", "python", "run.py", "--compile_only"], "--streamers"),
    ],
)
def test_a_wrong_command_is_refused(
    own_folder: Path, capfd: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    (own_folder / "run.py").touch()
    assert run(csrun, ["estimate", *words]) == 2
    assert message in capfd.readouterr().err
