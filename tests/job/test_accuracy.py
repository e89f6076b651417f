"""The shipped configuration, trained and evaluated as the README says."""

import re

from support.fc_mnist import FcMnist


def test_nineteen_of_twenty_test_digits_are_told(place: FcMnist) -> None:
    place.configure()
    trained = place.wse("--mode", "train")
    assert trained.returncode == 0, trained.stderr
    evaluated = place.wse("--mode", "eval")
    assert evaluated.returncode == 0, evaluated.stderr
    found = re.search(r"global step 3000: accuracy = ([\d.]+)", evaluated.stdout)
    assert found
    assert float(found[1]) >= 0.95
    on_cpu = place.cpu("--mode", "eval")
    assert found[0] in on_cpu.stderr
