"""Loops that modify the dict of a batch, and evaluations with losses of int32 labels."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from csrun.data.errors import UnusableLoaderError  # noqa: E402
from csrun.pytorch.loader.data import BatchTensors  # noqa: E402


class Named(Dataset):
    """Named samples. labels: their dtype."""

    def __init__(self, labels=torch.int64):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(48, 6, dtype=torch.float64, generator=generator)
        self.mask = torch.randint(2, (48,), generator=generator)
        self.y = torch.randint(4, (48,), generator=generator).to(labels)

    def __len__(self):
        return 48

    def __getitem__(self, index):
        return {"x": self.x[index], "mask": self.mask[index], "y": self.y[index]}


class OfDicts(Kit):
    def __init__(self):
        super().__init__()
        self.train = DataLoader(Named(), 8)


def test_a_loop_pops_a_key_of_its_batch_and_adds_another(tmp_path):
    def loop(kit):
        losses = []
        for batch in kit.train:
            batch["weights"] = batch.pop("mask").double() + 1
            each = f.cross_entropy(kit.model(batch["x"]), batch["y"], reduction="none")
            losses.append(kit.update((each * batch["weights"]).mean()))
        return losses

    beside(loop, tmp_path, kit=OfDicts)


def test_batches_may_contain_objects_other_than_tensors(tmp_path):
    """Text, arrays and numbers, of which the loss uses some; the last batch is shorter."""

    def collate(samples):
        names = [f"sample {len(each)}" for each in samples]
        counts = np.array([number for number, _ in enumerate(samples)])
        return names, *torch.utils.data.default_collate(samples).values(), {"counts": counts}, 0.5

    class OfObjects(Kit):
        def __init__(self):
            super().__init__()
            self.train = DataLoader(Named(), 10, collate_fn=collate)

    def loop(kit):
        losses = []
        for _ in range(2):
            for names, x, mask, y, others, factor in kit.train:
                each = f.cross_entropy(kit.model(x), y, reduction="none") * (mask + 1)
                losses.append(kit.update(each.mean() * factor))
                losses.append(len(names) + others["counts"].sum())
        return losses

    beside(loop, tmp_path, kit=OfObjects)


def test_streamers_send_the_tensors_of_a_batch():
    batches = BatchTensors("here")
    x = torch.arange(3)
    assert [a.tolist() for a in batches.taken((["a", "b"], x, None))] == [[0, 1, 2]]
    assert [a.tolist() for a in batches.taken((["c"], x[:1], None))] == [[0]]
    with pytest.raises(UnusableLoaderError, match="structure of the first one"):
        batches.taken((x, ["c"], None))
    with pytest.raises(UnusableLoaderError, match="here: a batch has no tensors, got list"):
        BatchTensors("here").taken(["a", 1])


@pytest.mark.parametrize(
    ("other", "said"), [((3,), r"at \[0\], got"), ((3, 2), r"had shape \[3\]")]
)
def test_a_streamer_compares_its_first_batch_with_the_chiefs(other, said):
    chiefs, streamers = BatchTensors("here"), BatchTensors("here")
    chiefs.note_first((torch.ones(2, 3),))
    streamers.decode(chiefs.encode())
    batch = (torch.ones(2, *other),) * (3 - len(other))
    with pytest.raises(UnusableLoaderError, match=said):
        streamers.taken(batch)


class Labelled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, x, y):
        return f.nll_loss(f.log_softmax(self.inner(x), dim=1), y)


class OfInt32(Kit):
    """Class labels in int32, or in int64 for plain PyTorch, which refuses int32."""

    labels = torch.int64

    def __init__(self):
        super().__init__(Labelled())
        self.model.forward = lambda *given: self.model[0](*given)
        self.val = DataLoader(Named(self.labels), 8)

    def session(self, folder, **options):
        self.val = DataLoader(Named(torch.int32), 8)
        return super().session(folder, **options)


def test_an_evaluation_reads_losses_of_int32_labels_from_its_first_step_on(tmp_path):
    def loop(kit):
        kit.model.eval()
        with torch.no_grad():
            return [kit.model(batch["x"], batch["y"]).item() for batch in kit.val]

    beside(loop, tmp_path, kit=OfInt32)
