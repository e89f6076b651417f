"""Checkpoints of PyTorch scripts as files for load_state_dict, and back."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

import numpy as np  # noqa: E402
from torch import nn  # noqa: E402

from csrun.cli import frame  # noqa: E402
from csrun.cli.csrun import csrun  # noqa: E402
from csrun.pytorch.weights.store_copies import names_of  # noqa: E402
from csrun.records import checkpoints  # noqa: E402
from csrun.records.torch_names import stored_name  # noqa: E402


class Model(nn.Module):
    """Model with a tied table, running statistics, and a parameter in the root module."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.block = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight
        self.scale = nn.Parameter(torch.randn(3))


def converted(*words):
    assert frame.run(csrun, ["checkpoint", "convert", *map(str, words)]) == 0


@pytest.fixture
def model():
    torch.manual_seed(1)
    made = Model()
    for name, buffer in made.named_buffers():
        if name.endswith(("mean", "var")):
            nn.init.uniform_(buffer, 1, 2)
    return made


@pytest.fixture
def model_dir(model, tmp_path):
    """Folder left by a script: each tensor once, in PyTorch's layout, and optimizer state."""
    named = [*model.named_parameters(), *model.named_buffers()]
    tensors = {stored_name(n): t.detach().numpy() for n, t in named if t.is_floating_point()}
    slots = {f"momentum/{name}": np.zeros_like(array) for name, array in tensors.items()}
    identity = {**names_of(model), "optimizer_state": "momentum"}
    folder = tmp_path / "model_dir"
    folder.mkdir()
    checkpoints.write(folder, 9, tensors | slots, identity, 1)
    return folder


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_load_state_dict_takes_a_converted_checkpoint(ending, model, model_dir, tmp_path):
    file = tmp_path / f"weights.{ending}"
    converted(model_dir, file, "--to", "torch")
    if ending == "pt":
        found = torch.load(file, weights_only=True)
    else:
        found = __import__("safetensors.torch", fromlist=["torch"]).load_file(file)
    torch.manual_seed(2)
    other = Model()
    other.load_state_dict(found)  # strict
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    assert found["block.0.weight"].shape == (6, 4)  # [out, in]


@pytest.mark.parametrize("wrap", [dict, lambda state: {"step": 3, "model_state_dict": state}])
def test_a_state_dict_becomes_a_checkpoint_with_the_same_tensors(wrap, model, model_dir, tmp_path):
    file = tmp_path / "own.pt"
    torch.save(wrap(model.state_dict()), file)
    converted(file, tmp_path / "made", "--from", "torch")
    made, own = checkpoints.latest(tmp_path / "made"), checkpoints.latest(model_dir)
    assert set(made.manifest.tensors) == set(own.weights)  # a tied one once
    for name in own.weights:
        assert np.array_equal(made.tensor(name), own.tensor(name))


def test_half_precision_is_read_as_float32(tmp_path):
    torch.save({"fc.weight": torch.tensor([1.5, -2.0], dtype=torch.bfloat16)}, tmp_path / "half.pt")
    converted(tmp_path / "half.pt", tmp_path / "made", "--from", "torch")
    found = checkpoints.latest(tmp_path / "made").tensor("fc/weight")
    assert (found.dtype, found.tolist()) == (np.float32, [1.5, -2.0])


def test_parameters_are_read_and_what_is_sparse_is_named(tmp_path, capsys):
    linear = nn.Linear(2, 3)
    torch.save(dict(linear.named_parameters()), tmp_path / "own.pt")  # they require gradients
    converted(tmp_path / "own.pt", tmp_path / "made", "--from", "torch")
    found = checkpoints.latest(tmp_path / "made").tensor("model/weight")
    assert np.array_equal(found, linear.weight.detach().numpy())
    torch.save({"a": torch.ones(2).to_sparse()}, tmp_path / "sparse.pt")
    paths = str(tmp_path / "sparse.pt"), str(tmp_path / "other")
    assert frame.run(csrun, ["checkpoint", "convert", *paths, "--from", "torch"]) == 2
    assert "a is torch.sparse_coo: save its to_dense()" in capsys.readouterr().err


@pytest.mark.parametrize("saved", [[1, 2], {"lr": 0.1}, b"no file of torch's"])
def test_what_is_no_state_dict_is_refused(saved, tmp_path, capsys):
    file = tmp_path / "x.pt"
    if isinstance(saved, bytes):
        file.write_bytes(saved)
    else:
        torch.save(saved, file)
    words = ["checkpoint", "convert", str(file), str(tmp_path / "made"), "--from", "torch"]
    assert frame.run(csrun, words) == 2
    assert "torch.save" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


WITHOUT_VALUES = {
    "on the meta device and has no values": lambda: torch.ones(2, device="meta"),
    "repeats its values, as expand() does": lambda: torch.ones(1).expand(10**9),
    "a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("message", WITHOUT_VALUES)
def test_a_tensor_without_values_of_its_own_is_refused(message, tmp_path, capsys):
    torch.save({"a": WITHOUT_VALUES[message]()}, tmp_path / "x.pt")
    words = ["checkpoint", "convert", str(tmp_path / "x.pt"), str(tmp_path / "made")]
    assert frame.run(csrun, [*words, "--from", "torch"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_the_format_of_old_pytorch_is_refused_with_a_remedy(tmp_path, capsys):
    torch.save({"a": torch.ones(2)}, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    words = ["checkpoint", "convert", str(tmp_path / "x.pt"), str(tmp_path / "made")]
    assert frame.run(csrun, [*words, "--from", "torch"]) == 2
    assert "before PyTorch 1.6: torch.load it and torch.save it again" in capsys.readouterr().err
