"""Secret of a job: read only if no other account can have read or written it."""

import os

import pytest
from support.accounts import OTHER, needs_two_accounts

from csrun.base.errors import CsrunError
from csrun.context.job import read_secret

OF_32_BYTES = bytes(range(32))


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(OF_32_BYTES)
    path.chmod(0o600)
    return path


def test_ones_own_is_read(secret):
    assert read_secret(secret) == OF_32_BYTES


def test_one_that_others_may_read_is_none(secret):
    secret.chmod(0o640)
    with pytest.raises(CsrunError, match=r"must be private.*mode 0640"):
        read_secret(secret)


@needs_two_accounts
def test_one_that_another_account_has_put_there_is_none(secret):
    os.chown(secret, OTHER, OTHER)
    with pytest.raises(CsrunError, match=f"got owner uid {OTHER}"):
        read_secret(secret)


def test_a_link_to_one_is_not_followed(secret, tmp_path):
    (tmp_path / "link").symlink_to(secret)
    with pytest.raises(CsrunError, match="symbolic links"):
        read_secret(tmp_path / "link")


@pytest.mark.parametrize("length", [0, 31, 33, 1000])
def test_one_of_another_length_is_none(secret, length):
    secret.write_bytes(bytes(length))
    with pytest.raises(CsrunError, match=r"secret"):
        read_secret(secret)
