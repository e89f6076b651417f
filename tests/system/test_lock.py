"""Lock files that other accounts can neither open nor replace."""

import os
import stat
import subprocess
import sys

import pytest
from support.accounts import OTHER, as_account, needs_two_accounts

from csrun.base.files import account_name
from csrun.system import lock, try_lock


@pytest.mark.parametrize("plant", [os.symlink, os.link], ids=["symbolic link", "hard link"])
def test_what_a_planted_link_leads_to_is_not_emptied(tmp_path, plant):
    precious = tmp_path / "precious"
    precious.write_text("all of it")
    plant(precious, tmp_path / "cs2-01.lock")
    with pytest.raises(OSError, match=r"not a regular file with one name|symbolic links"):
        try_lock(tmp_path / "cs2-01.lock", "job 1")
    assert precious.read_text() == "all of it"


@needs_two_accounts
@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077, 0o777])
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


def test_a_wait_says_which_process_of_which_account_holds_the_lock(tmp_path, monkeypatch, capsys):
    """The holder may have opened the file for reading only, so that the file does not name it."""
    module = sys.modules["csrun.system.lock"]
    monkeypatch.setattr(module, "_PAUSES_S", (0.001,))
    path = tmp_path / "mutex"
    lock(path, "job 1 (process 5)").release()
    program = (
        "import fcntl, sys\nread = open(sys.argv[1])\nfcntl.flock(read, fcntl.LOCK_SH)\n"
        "print('held', flush=True)\nsys.stdin.read()"
    )
    reader = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(reader, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        told = module.held_by

        def held_by(path):
            said = told(path)
            holder.stdin.close()  # it releases the lock
            return said

        monkeypatch.setattr(module, "held_by", held_by)
        with lock(path, "job 2"):
            assert holder.stdin.closed
    said = f"csrun: waiting for {path}, held by process {holder.pid} of {account_name(os.getuid())}"
    assert said in capsys.readouterr().err


def test_a_shared_lock_is_the_groups_whatever_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        lock(tmp_path / "line" / "mutex", "job 1", shared=True).release()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "line" / "mutex").stat().st_mode) == 0o660
    assert stat.S_IMODE((tmp_path / "line").stat().st_mode) == 0o2770
    assert os.listdir(tmp_path / "line") == ["mutex"]
