"""compile_report.txt in the working directory: a link to the newest compile's."""

from contextlib import suppress
from pathlib import Path

from csrun.base.files import replace_link
from csrun.compiler.report.text import TEXT_FILE


def link_report(compiled: Path) -> None:
    """Make the link lead into a compile directory, in place of where it led before.

    A file or folder of that name is left alone, and where no link can be made there is none: the
    report itself lies in the compile directory.
    """
    link = Path(TEXT_FILE)
    with suppress(OSError):
        if link.is_symlink() or not link.exists():
            replace_link(link, compiled / TEXT_FILE)
