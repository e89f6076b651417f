"""Pictures of docs/dashboard.md: present, and small."""

import struct

from support.dashboard_pictures import IMAGES, MOST_BYTES, RUN, WAFER, WIDTH
from support.pages import CHECKOUT


def test_the_pictures_of_the_page_are_pngs_of_its_width() -> None:
    """Contents differ from run to run: scripts/dashboard_pictures draws them again."""
    page = (CHECKOUT / "docs" / "dashboard.md").read_text()
    for path in (RUN, WAFER):
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG\r\n")
        assert struct.unpack(">I", data[16:20])[0] == WIDTH  # of the header
        assert len(data) < MOST_BYTES
        assert f"({path.relative_to(IMAGES.parent)})" in page
