"""Archives of object files in the format of ar(1)."""

import shutil
import subprocess

import pytest

from csrun.executable.archive import archive, is_archive, members

OBJECTS = {"f": b"odd", "relu_12345678": b"odd", "of_a_long_name": b"", "f.end": bytes(range(256))}


def test_the_members_are_the_objects():
    image = archive(OBJECTS)
    assert is_archive(image)
    assert members(image) == OBJECTS
    assert members(archive({})) == {}
    assert not is_archive(b"\x7fELF")


@pytest.mark.parametrize("size", [1, 59, 60, 62])
def test_a_truncated_archive_is_refused(size):
    with pytest.raises(ValueError, match="truncated archive"):
        members(archive(OBJECTS)[: 8 + size])


def test_its_format_is_that_of_ar(tmp_path):
    # 8 bytes, then for each a header of 60, of fields padded with spaces, and the name
    assert archive({"f.e": b"even"}) == (
        b"!<arch>\n#1/3            0           0     0     644     7         `\nf.eeven\n"
    )
    if ar := shutil.which("ar"):
        file = tmp_path / "kernels.a"
        file.write_bytes(archive(OBJECTS))
        listed = subprocess.run([ar, "t", file], capture_output=True, text=True, check=True)
        assert listed.stdout.split() == [*OBJECTS]
        content = subprocess.run([ar, "p", file, "f.end"], capture_output=True, check=True).stdout
        assert content == OBJECTS["f.end"]
