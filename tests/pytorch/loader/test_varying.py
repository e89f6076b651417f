"""Loaders that streamers cannot serve: batches whose shapes, structures or row counts vary."""

import random

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


class Texts:
    """Sentences of several lengths, each with a label."""

    def __init__(self, lengths):
        draw = torch.Generator().manual_seed(5)
        self.ids = [torch.randint(1, 20, (n,), generator=draw) for n in lengths]
        self.labels = torch.randint(4, (len(lengths),), generator=draw)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return self.ids[index], self.labels[index]


def padded(samples):
    """Collate sentences, padded to the longest one."""
    ids, labels = zip(*samples, strict=True)
    return nn.utils.rnn.pad_sequence(ids, batch_first=True), torch.stack(labels)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 4)

    def forward(self, ids):
        return self.head(self.embedding(ids).sum(1) / (ids != 0).sum(1, keepdim=True))


LENGTHS = [3, 5, 5, 2, 7, 4, 3, 3, 6, 7, 2, 2]


class Padded(Kit):
    """Shuffled batches of padded sentences."""

    collate = staticmethod(padded)

    def __init__(self, *layers, lengths=LENGTHS):
        super().__init__(*layers or (Reader(),))
        texts = Texts(lengths)
        self.train = DataLoader(texts, 2, shuffle=True, collate_fn=self.collate)
        self.val = DataLoader(texts, 3, collate_fn=self.collate)


def passes(kit):
    """Losses of trainings, each followed by an evaluation."""
    torch.manual_seed(2)
    found = []
    for _ in range(3):
        kit.model.train()
        found += kit.train_once()
        kit.model.eval()
        with torch.no_grad():
            found += [kit.criterion(kit.model(x), y) for x, y in kit.val]
    return found


@pytest.mark.parametrize("fast", [True, False])
def test_each_batch_is_padded_to_its_longest_sample(tmp_path, fast, caplog):
    beside(passes, tmp_path, kit=Padded, settings={"fast": fast})
    said = [r.message for r in caplog.records if "this process makes the batches" in r.message]
    assert len(said) == 2  # one per loader
    assert "all batches must have the shape of the first one" in said[0]


def test_batches_of_several_lengths_are_evaluated_in_training_mode(tmp_path):
    def loop(kit):
        torch.manual_seed(2)
        found = []
        for _ in range(2):
            found += kit.train_once()
            with torch.no_grad():
                found += [kit.criterion(kit.model(x), y) for x, y in kit.val]
            found += [buffer.double().sum() for buffer in kit.model.buffers()]
        return found

    beside(loop, tmp_path, Reader(), nn.BatchNorm1d(4), kit=Padded, rel=1e-6)


def test_a_killed_run_on_batches_of_several_lengths_resumes(tmp_path):
    """Its evaluations resume, too, whose steps run on the wafer."""

    def run(folder, count):
        kit, found = Padded(), []
        torch.manual_seed(2)
        with kit.session(folder):
            for _ in range(count):
                kit.model.train()
                found += [float(x) for x in kit.train_once()]
                kit.model.eval()
                with torch.no_grad():
                    found += [float(kit.criterion(kit.model(x), y)) for x, y in kit.val]
        return found, [x.tolist() for x in kit.model.state_dict().values()]

    run(tmp_path / "a", 1)
    assert run(tmp_path / "a", 2) == run(tmp_path / "b", 2)


class Concatenated(Padded):
    """Sentences concatenated, with the offset of each."""

    @staticmethod
    def collate(samples):
        ids, labels = zip(*samples, strict=True)
        starts = torch.tensor([0, *map(len, ids[:-1])]).cumsum(0)
        return (torch.cat(ids), starts), torch.stack(labels)


class Bag(nn.EmbeddingBag):
    def forward(self, given):
        return super().forward(*given)


def test_tensors_of_a_batch_have_several_numbers_of_rows(tmp_path):
    beside(passes, tmp_path, Bag(20, 4, mode="sum"), kit=Concatenated)


class Worded(Padded):
    """Texts, which the loop converts to tensors."""

    @staticmethod
    def collate(samples):
        return [" ".join(map(str, ids.tolist())) for ids, _ in samples]


def test_batches_have_no_tensors(tmp_path):
    def loop(kit):
        torch.manual_seed(2)
        losses = []
        for texts in kit.train:
            ids = [torch.tensor([*map(int, text.split())]) for text in texts]
            x = nn.utils.rnn.pad_sequence(ids, batch_first=True)
            y = torch.tensor([len(each) % 4 for each in ids])
            losses.append(kit.update(kit.criterion(kit.model(x), y)))
        return losses

    beside(loop, tmp_path, kit=Worded)


def test_a_loader_of_one_shape_is_the_streamers(tmp_path, caplog):
    kit = Padded(lengths=[5] * 12)
    with kit.session(tmp_path):
        passes(kit)
    assert not any("this process makes" in record.message for record in caplog.records)


def test_a_shape_that_the_first_batches_do_not_show_is_refused_with_the_remedies(tmp_path):
    kit = Padded(lengths=[5] * 10 + [7] * 2)
    kit.train = DataLoader(kit.train.dataset, 2, collate_fn=padded)
    said = "all batches must have the shape of the first one.*or leave cbtorch.dataloader out"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()


def test_reading_the_first_batches_draws_no_numbers(tmp_path):
    """The script's generators are not advanced, as the loop may use them itself."""
    drawn = []
    for is_ours in (True, False):
        kit = Padded()
        torch.manual_seed(2)
        random.seed(2)
        if is_ours:
            with kit.session(tmp_path):
                next(iter(kit.train))
                drawn.append((random.random(), torch.rand(())))
        else:
            next(iter(kit.train))
            drawn.append((random.random(), torch.rand(())))
    assert drawn[0] == drawn[1]
