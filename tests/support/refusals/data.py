"""DataLoaders and data sets."""

import torch
from support.refusals import refused, refused_loop
from support.torch_loops import Kit
from torch.utils.data import DataLoader, Dataset, TensorDataset

import cerebras_torch as cbtorch


class Loads(Kit):
    """A kit with another DataLoader, which is made of the kit's data set."""

    def __init__(self, load):
        super().__init__()
        self.train = load(self.train.dataset)


class Doubles(DataLoader):
    def __iter__(self):
        for x, y in super().__iter__():
            yield x * 2, y


class Backwards(DataLoader):
    def __iter__(self):
        return reversed(list(super().__iter__()))


CHANGED = "a DataLoader whose `__iter__` changes its batches"


@refused(CHANGED)
def changes_batches(folder):
    kit = Loads(lambda data: Doubles(data, 8))
    with kit.session(folder):
        for x, y in kit.train:  # here
            kit.update(kit.criterion(kit.model(x), y))


@refused(CHANGED)
def changes_their_order(folder):
    kit = Loads(lambda data: Backwards(data, 8))
    with kit.session(folder):
        for x, y in kit.train:  # here
            kit.update(kit.criterion(kit.model(x), y))


class Endless:
    """A sampler without a length."""

    def __iter__(self):
        return iter(range(48))


@refused("a sampler without `__len__`")
def sampler_without_a_length(folder):
    cbtorch.initialize(model_dir=folder)
    data = TensorDataset(torch.randn(48, 6))
    cbtorch.dataloader(DataLoader(data, 8, sampler=Endless()))  # here


class Samples(Dataset):
    """Samples that a function makes of their number, and a factor."""

    def __init__(self, make):
        self.make, self.factor = make, 1.0

    def __len__(self):
        return 48

    def __getitem__(self, number):
        return self.make(number)


def loaded(folder, data, x_of=lambda batch: batch[0], **options):
    """Train on a data set. x_of: makes the model's input of a batch."""
    kit = Kit()
    cbtorch.initialize(model_dir=folder)
    cbtorch.module(kit.model)
    train = cbtorch.dataloader(DataLoader(data, 8, **options))  # here
    with cbtorch.Session(kit.model, kit.optimizer, mode="train"):
        for batch in train:  # here
            kit.update(kit.model(x_of(batch).double()).mean())


SHAPES = "batches of other shapes or structure than the first four"


@refused(SHAPES, ends_job=True)
def shapes_that_change(folder):
    loaded(
        folder,
        Samples(lambda number: (torch.ones(6).double(), torch.ones(1 + number // 24).double())),
    )


@refused(SHAPES, ends_job=True)
def structure_that_changes(folder):
    loaded(folder, Samples(lambda number: [torch.ones(6).double()] * (1 + number // 24)))


@refused("a later batch without a tensor")
def batch_without_a_tensor(folder):
    def x_of(batch):
        return torch.tensor([[float(len(text))] * 6 for text in batch])

    loaded(folder, Samples(lambda number: "text"), x_of)


@refused("a tensor of a later batch without a row per sample", ends_job=True)
def tensor_without_rows(folder):
    def collate(samples):
        inputs, numbers = zip(*samples, strict=True)
        return torch.stack(inputs), torch.ones(8 if numbers[0] < 40 else 3)

    loaded(folder, TensorDataset(torch.ones(48, 6), torch.arange(48)), collate_fn=collate)


@refused("a pass left early with `DataLoader(generator=g)`")
def pass_left_early(folder):
    kit = Loads(lambda data: DataLoader(data, 8, shuffle=True, generator=torch.Generator()))
    with kit.session(folder):
        for _ in range(2):
            for step, (x, y) in enumerate(kit.train):  # here
                kit.update(kit.criterion(kit.model(x), y))
                if step == 2:
                    break


@refused_loop("a data set that changes within a pass")
def changed_within_a_pass(kit):
    for step, (x, y) in enumerate(kit.train):  # here
        if step == 2:
            kit.train.dataset.tensors[0].mul_(2)
        kit.update(kit.criterion(kit.model(x), y))


class Scale:
    """A value of another kind than csrun sends."""

    factor = 2.0


@refused(
    "a data set's attribute of another kind, changed in a job",
    python="the script's own process makes the batches",
)
def attribute_of_another_kind(folder):
    data = Samples(lambda number: (torch.ones(6).double(), 1))
    kit = Kit()
    kit.train = DataLoader(data, 8)
    with kit.session(folder):
        for _ in range(2):
            for x, y in kit.train:  # here
                kit.update(kit.criterion(kit.model(x), y))
            data.factor = Scale()
