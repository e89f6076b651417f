"""Lock files that nobody else can open, or have put something in the place of."""

import os
import stat

import pytest
from support.accounts import OTHER, as_account, needs_two_accounts

from csrun.system import lock, try_lock


@pytest.mark.parametrize("plant", [os.symlink, os.link], ids=["symbolic link", "hard link"])
def test_what_a_planted_link_leads_to_is_not_emptied(tmp_path, plant):
    precious = tmp_path / "precious"
    precious.write_text("all of it")
    plant(precious, tmp_path / "cs2-01.lock")
    with pytest.raises(OSError, match=r"not a file of its own|symbolic links"):
        try_lock(tmp_path / "cs2-01.lock", "job 1")
    assert precious.read_text() == "all of it"


@needs_two_accounts
@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_another_account_cannot_hold_a_lock_and_so_stalls_nobody(own_folder, umask):
    before = os.umask(umask)
    try:
        with lock(own_folder / "live.lock", "job 1"):
            own_folder.chmod(0o777)
            path = own_folder.relative_to(own_folder) / "live.lock"
            opened = as_account(OTHER, lambda: os.open(path, os.O_RDONLY))
    finally:
        os.umask(before)
    assert isinstance(opened, PermissionError)
    assert stat.S_IMODE((own_folder / "live.lock").stat().st_mode) == 0o600
