"""DataLoaders with their own `__iter__`: PyTorch's losses, or a refusal."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


class LooksAhead(DataLoader):
    """Loader that prefetches a batch to mark the last one, as Accelerate's does."""

    is_last, passes, skipped = False, 0, 0

    def __iter__(self):
        self.is_last = False
        batches = super().__iter__()
        current = next(batches)
        for number, following in enumerate(batches):
            if number >= self.skipped:
                yield current
            current = following
        self.is_last = True
        yield current
        self.passes += 1


class Doubles(DataLoader):
    def __iter__(self):
        for x, y in super().__iter__():
            yield x * 2, y


class Scales(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield batch * 2


class Backwards(DataLoader):
    def __iter__(self):
        return reversed(list(super().__iter__()))


def kit_of(kind):
    class OwnKit(Kit):
        def __init__(self):
            super().__init__()
            self.train = kind(self.train.dataset, 8)

    return OwnKit


@pytest.mark.parametrize("skipped", [0, 2])
def test_its_own_account_of_the_pass_is_kept(tmp_path, skipped):
    def loop(kit):
        found = []

        def note(step):
            found.append(kit.train.is_last)

        for _ in range(3):
            losses = kit.train_once(note)
            found += [*losses, kit.train.passes]
        return found

    kind = type("Skips", (LooksAhead,), {"skipped": skipped})
    beside(loop, tmp_path, kit=kit_of(kind))


@pytest.mark.parametrize("kind", [Doubles, Scales, Backwards])
def test_batches_that_it_changes_are_refused(tmp_path, kind):
    kit = kit_of(kind)()
    message = rf"test_custom_loaders.py:\d+: {kind.__name__}.__iter__ changes its batches or"
    with pytest.raises(UsageError, match=message), kit.session(tmp_path):
        for _ in kit.train:
            pass
