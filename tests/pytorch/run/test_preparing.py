"""Compile-only and validate-only runs of a loop: its first program, no step, exit code 0."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402


def script(folder, mode="train", **options):
    cbtorch.initialize(model_dir=folder, **options)
    model = cbtorch.module(nn.Linear(6, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = TensorDataset(torch.randn(32, 6), torch.randint(4, (32,)))
    loader = cbtorch.dataloader(DataLoader(data, 8))
    with cbtorch.Session(model, optimizer if mode == "train" else None, mode=mode):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            if mode == "train":
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print("loss", loss.item())


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("how", ["option", "command"])
@pytest.mark.parametrize("only", ["compile_only", "validate_only"])
def test_the_script_ends_before_its_first_step(
    tmp_path, monkeypatch, caplog, capsys, only, how, mode
):
    monkeypatch.chdir(tmp_path)
    if how == "command":
        monkeypatch.setenv("CSRUN_PREPARATION", only)
    options = {only: True} if how == "option" else {}
    folder = tmp_path / "model_dir"
    with caplog.at_level("INFO", "csrun"), pytest.raises(SystemExit) as ended:
        script(folder, mode, **options)
    assert ended.value.code == 0
    done = "compiled" if only == "compile_only" else "validated"
    assert caplog.messages[-1] == f"{only}: the model was {done} for {mode}; no step was run"
    # the first step of an evaluation is read of its recording
    assert capsys.readouterr().out.count("loss") == (mode == "eval")
    assert len(list(folder.glob("tfcs_*/program.py"))) == (only == "compile_only")
    assert not list(folder.glob("*.safetensors"))
    assert folder.exists() == (only == "compile_only")


def test_the_run_that_follows_takes_the_compile(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        script(tmp_path / "model_dir", compile_only=True)
    with caplog.at_level("INFO", "csrun"):
        script(tmp_path / "model_dir")
    assert sum("Cached compilation found" in line for line in caplog.messages) == 1
    assert not any("Compiled in" in line for line in caplog.messages)


def test_an_evaluation_that_comes_first_is_compiled_beside_the_training(tmp_path, caplog):
    cbtorch.initialize(model_dir=tmp_path, compile_only=True)
    model = cbtorch.module(nn.Linear(6, 4))
    optimizer, criterion = torch.optim.SGD(model.parameters(), 0.1), nn.CrossEntropyLoss()
    data = TensorDataset(torch.randn(32, 6), torch.randint(4, (32,)))
    train, validation = (cbtorch.dataloader(DataLoader(data, size)) for size in (8, 4))
    losses = []
    with (
        caplog.at_level("INFO", "csrun"),
        pytest.raises(SystemExit),
        cbtorch.Session(model, optimizer, criterion),
    ):
        for _ in range(2):
            with torch.no_grad():
                losses += [criterion(model.eval()(x), y).item() for x, y in validation]
        for x, y in train:
            optimizer.zero_grad()
            criterion(model.train()(x), y).backward()
            optimizer.step()
    expected = criterion(model(data[:4][0]), data[:4][1]).item()
    assert losses == pytest.approx([expected] * 2, rel=1e-6)
    said = [line for line in caplog.messages if line.startswith("compile_only: ")]
    assert [line.split()[6] for line in said] == ["eval;", "train;"]
    assert len(list(tmp_path.glob("tfcs_*/program.py"))) == 2


def test_both_at_once_are_refused(tmp_path):
    with pytest.raises(UsageError, match="got both validate_only and compile_only"):
        cbtorch.initialize(model_dir=tmp_path, compile_only=True, validate_only=True)
