"""Models and DataLoaders passed to csrun: refusals and warnings."""

import copy
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402
from csrun.pytorch.user import loaders  # noqa: E402


def test_a_lazy_module_is_refused_before_it_has_shapes(tmp_path):
    cbtorch.initialize(model_dir=tmp_path)
    with pytest.raises(UsageError, match=r"weight of the model has no shape.*run a batch through"):
        cbtorch.module(nn.LazyLinear(4))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
def test_a_scripted_module_is_refused(tmp_path):
    cbtorch.initialize(model_dir=tmp_path)
    with pytest.raises(UsageError, match=r"test_user.py:\d+: .*torch.jit.ScriptModule"):
        cbtorch.module(nn.Sequential(torch.jit.script(nn.Linear(4, 4))))


def test_a_dataloader_made_within_the_block_is_warned_of(tmp_path, caplog):
    kit = Kit()
    with kit.session(tmp_path):
        kit.train = cbtorch.dataloader(DataLoader(kit.val.dataset, 4))
        kit.train_once()
    assert "call cbtorch.dataloader(...) before the first Session's block" in caplog.text
    assert all(loader is not kit.train for loader in loaders)  # the other tasks do not have it


def test_packages_see_a_dataloader_of_its_own_class(tmp_path):
    """Accelerate's `prepare` ignores other classes, and then skips updates."""
    cbtorch.initialize(model_dir=tmp_path)
    loader = cbtorch.dataloader(DataLoader(Kit().val.dataset, 4))
    assert isinstance(loader, DataLoader)
    assert cbtorch.dataloader(loader) is loader


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))]
)
def test_a_copy_of_a_dataloader_is_the_scripts_own_loader(tmp_path, copied):
    cbtorch.initialize(model_dir=tmp_path)
    own = DataLoader(Kit().val.dataset, 8)
    found = copied(cbtorch.dataloader(own))
    assert type(found) is DataLoader
    assert [x.tolist() for x, _ in found] == [x.tolist() for x, _ in own]


def test_a_sessions_warnings_filter_ends_with_its_block(tmp_path):
    before = list(warnings.filters)
    kit = Kit()
    with kit.session(tmp_path):
        kit.train_once()
    assert warnings.filters == before
