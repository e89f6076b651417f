"""Jobs in mixed precision: the bits of one process in each mode, and after a kill."""

import signal

import pytest
from safetensors.numpy import load_file
from support.fc_mnist import FcMnist
from support.jobs import gone, until

STEPS, EVERY = 60, 20
SCALED = {
    "optimizer__loss_scaling_factor": "dynamic",
    "optimizer__initial_loss_scale": 2.0**24,
    "optimizer__max_loss_scale": 2.0**24,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> FcMnist:
    place = FcMnist(tmp_path_factory.mktemp("mixed"))
    place.configure(
        runconfig__max_steps=STEPS,
        runconfig__save_checkpoints_steps=EVERY,
        runconfig__precision="mixed_float16",
        runconfig__number_ranges=EVERY,
        **SCALED,
    )
    return place


@pytest.fixture(scope="module")
def reference(place: FcMnist) -> bytes:
    """The last checkpoint of the CPU run, in which steps were skipped."""
    done = place.cpu("-o", "cpu")
    assert done.returncode == 0, done.stderr
    path = place.checkpoint(STEPS, "cpu")
    assert load_file(path)["loss_scale"] < 2.0**24
    return path.read_bytes()


def test_a_job_in_weight_streaming(place: FcMnist, reference: bytes) -> None:
    done = place.wse("-o", "streamed")
    assert done.returncode == 0, done.stderr
    assert place.checkpoint(STEPS, "streamed").read_bytes() == reference
    pages = [(place.path / run / "number_ranges.html").read_bytes() for run in ("cpu", "streamed")]
    assert pages[0] == pages[1]
    assert b"<td>gradient" in pages[0]


def killed_and_resumed(place: FcMnist) -> bytes:
    """The last checkpoint of a job that was killed after its first one, and started again."""
    with place.start_wse("-o", "killed") as launcher:
        until(place.checkpoint(EVERY, "killed").exists)
        pids = list(place.processes(launcher.pid).values())
        launcher.send_signal(signal.SIGKILL)
        assert gone(pids[1:])
    done = place.wse("-o", "killed")
    assert done.returncode == 0, done.stderr
    assert "Restoring parameters from killed/" in done.stdout
    return place.checkpoint(STEPS, "killed").read_bytes()


@pytest.mark.slow
def test_a_job_killed_and_started_again(place: FcMnist, reference: bytes) -> None:
    assert killed_and_resumed(place) == reference


@pytest.mark.slow
def test_a_job_killed_with_its_store_on_disk(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = FcMnist(tmp_path_factory.mktemp("disk"))
    options: dict[str, object] = {
        "model__hidden_sizes": [512] * 6,
        "runconfig__max_steps": STEPS,
        "runconfig__save_checkpoints_steps": EVERY,
        "runconfig__precision": "mixed_float16",
        **SCALED,
    }
    place.configure(**options)
    done = place.cpu("-o", "cpu")
    assert done.returncode == 0, done.stderr
    reference = place.checkpoint(STEPS, "cpu")
    assert load_file(reference)["skipped_steps"] > 0
    of_disk = {"runconfig__weight_store": "disk", "runconfig__weight_store_memory": "13MB"}
    place.configure(**options, **of_disk)
    assert killed_and_resumed(place) == reference.read_bytes()


LOOP = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import cerebras_torch as cbtorch

folder, *precisions = sys.argv[1:]
for precision in precisions:
    torch.manual_seed(1)
    cbtorch.initialize(model_dir=f"{folder}/{precision}", precision=precision, number_ranges=11)
    is_scaled = precision == "mixed_float16"
    most = {"initial_loss_scale": 2.0**24, "max_loss_scale": 2.0**24} if is_scaled else {}
    scaler = cbtorch.amp.GradScaler("dynamic" if is_scaled else 1.0, **most)
    layers = nn.Linear(6, 9), nn.Tanh(), nn.Dropout(0.2), nn.BatchNorm1d(9), nn.Linear(9, 4)
    model = cbtorch.module(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    criterion = nn.CrossEntropyLoss()
    data = TensorDataset(torch.randn(85, 6), torch.randint(4, (85,)))  # the last batch has 5
    loader = cbtorch.dataloader(DataLoader(data, 8, shuffle=True))
    with cbtorch.Session(model, optimizer, criterion, mode="train"):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            scaler.step(optimizer)
        cbtorch.master_print(f"last: {loss.item()!r} {norm.item()!r} {scaler.get_scale()}")
"""
PRECISIONS = "mixed_bfloat16", "mixed_float16"


@pytest.mark.slow
def test_a_pytorch_loop_has_the_bits_of_one_process(place: FcMnist) -> None:
    pytest.importorskip("torch")
    (place.path / "loop.py").write_text(LOOP)
    found = []
    layout = "--total-nodes", "3", "--tasks-per-node", "2", "--cpus-per-task", "1"
    for words in (("python",), (*layout, "python-ws"), (*layout, "python-pt")):
        command = "csrun_cpu" if words == ("python",) else "csrun_wse"
        folder = f"loop_{words[-1]}"
        done = place.run(*words, "loop.py", folder, *PRECISIONS, command=command)
        assert done.returncode == 0, done.stderr
        said = [line for line in done.stdout.splitlines() if line.startswith("last: ")]
        files = [
            place.path / folder / precision / name
            for precision in PRECISIONS
            for name in ("model-ckpt-11.safetensors", "number_ranges.html")
        ]
        found.append((said, *(file.read_bytes() for file in files)))
    assert len(found[0][0]) == len(PRECISIONS)
    assert found[1:] == found[:1] * 2
