"""Log of values that a loop has read: checked on reading, written only for reads."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from csrun.base.errors import CsrunError  # noqa: E402
from csrun.pytorch.step.value_log import FILE, ValueLog  # noqa: E402


def test_values_are_read_as_they_were_kept_up_to_the_checkpoint(tmp_path):
    kept = ValueLog(tmp_path, 0)
    kept.add_losses([0, 1], [1, 2], [6.25, 5.5])
    kept.close()
    kept.add(2, 0, 3, torch.arange(3.0))
    kept.close()
    again = ValueLog(tmp_path, 2)
    assert [again.loss(step) for step in range(3)] == [6.25, 5.5, None]
    assert again.value(2, 0) is None


def test_each_flipped_bit_is_damage_or_a_missing_end(tmp_path):
    kept = ValueLog(tmp_path, 0)
    kept.add_losses([0], [1], [6.25])
    kept.close()
    whole = (tmp_path / FILE).read_bytes()
    for bit in range(len(whole) * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / FILE).write_bytes(data)
        try:
            assert ValueLog(tmp_path, 1).loss(0) is None
        except CsrunError as error:
            assert "the loop has read is damaged" in str(error)  # noqa: PT017


def test_no_link_is_followed_that_is_planted_meanwhile(tmp_path):
    notes = tmp_path / "notes"
    notes.write_text("precious")
    folder = tmp_path / "model_dir"
    folder.mkdir()
    kept = ValueLog(folder, 0)
    (folder / FILE).symlink_to(notes)
    with pytest.raises(CsrunError, match="File exists"):
        kept.add_losses([0], [1], [1.0])
    (folder / FILE).unlink()
    kept.add_losses([0], [1], [1.0])
    kept.close()
    (folder / FILE).unlink()
    (folder / FILE).hardlink_to(notes)
    with pytest.raises(CsrunError, match="another file has taken its name"):
        kept.add_losses([1], [2], [1.0])
    assert notes.read_text() == "precious"
