"""Values computed from outputs of evaluations, as with PyTorch's tensors."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402


def validated(kit, of_output, mode=torch.no_grad):
    """Three passes of training, each followed by a validation and its metrics."""
    found = []
    for _ in range(3):
        kit.model.train()
        found += kit.train_once()
        kit.model.eval()
        with mode():
            outs, labels = zip(*[(kit.model(x), y) for x, y in kit.val], strict=True)
        found += [x.item() for x in of_output(torch.cat(outs), torch.cat(labels))]
    return found


def of_determination(out, y):
    """R squared, which uses a value and its mean."""
    out = out[:, 0]
    return [((y - out) ** 2).sum() / ((out - out.mean()) ** 2).sum(), (out - y).abs().mean()]


class Halves(Kit):
    """Kit whose validation has two batches; the first three batches are recorded."""

    def __init__(self, *layers, **options):
        super().__init__(*layers, **options)
        self.val = DataLoader(self.val.dataset, 10)


def test_a_value_that_two_others_are_made_of_is_computed_once(tmp_path):
    beside(lambda kit: validated(kit, of_determination), tmp_path, kit=Halves)


def test_inference_mode_is_no_grad(tmp_path):
    beside(lambda kit: validated(kit, of_determination, torch.inference_mode), tmp_path)
    with torch.inference_mode():
        assert torch.is_inference_mode_enabled()


def test_a_function_may_be_one_of_inference_mode_alone(tmp_path):
    @torch.inference_mode()
    def hits(kit):
        return sum((kit.model(x).argmax(1) == y).sum().item() for x, y in kit.val)

    def loop(kit):
        return [*kit.train_once(), hits(kit), *kit.train_once(), hits(kit)]

    beside(loop, tmp_path)


def test_what_has_a_shape_of_numbers_is_computed_of_them(tmp_path):
    def loop(kit):
        found = kit.train_once()
        kit.model.eval()
        for x, y in kit.val:
            with torch.no_grad():
                out = kit.model(x)
            hit = out.argmax(1)
            found += [out[y == 1].sum().item(), *torch.bincount(hit, minlength=4).tolist()]
            found += (hit != y).nonzero().flatten().tolist()
        return found

    beside(loop, tmp_path)


def test_predictions_are_collected_in_a_tensor_of_the_loop(tmp_path):
    """The writes start with the fourth batch, whose values are not on the host."""

    def collected(kit):
        kit.model.eval()
        found = torch.zeros(20, dtype=torch.float64)
        with torch.no_grad():
            for step, (x, y) in enumerate(kit.val):
                out = kit.model(x)
                if step >= 4:
                    found[step * 4 : step * 4 + 4] = out.sum(1)
                kit.criterion(out, y).item()
        return found

    beside(collected, tmp_path)


def test_a_metric_of_the_training_is_converted_in_the_evaluation(tmp_path):
    """Also while steps of the evaluation are recorded."""

    def loop(kit):
        found = []
        for _ in range(2):
            hits = 0
            for x, y in kit.train:
                out = kit.model(x)
                kit.update(kit.criterion(out, y))
                hits = hits + (out.argmax(1) == y).sum()
            for x, y in kit.val:
                with torch.no_grad():
                    found += [(kit.model(x).argmax(1) == y).sum(), hits.float() / 48, hits.sqrt()]
        return found

    beside(loop, tmp_path)
