"""Authentication of connections: accepted and refused peers."""

import errno
import os
import socket
import threading
from contextlib import ExitStack, closing
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from support.accounts import OTHER, as_account, needs_two_accounts

from csrun.base import stored
from csrun.base.errors import CsrunError, PeerLost, UsageError
from csrun.context import Host
from csrun.runtime.wire import rendezvous
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.handshake import Frames, Hello, new_nonce, prove
from csrun.runtime.wire.listener import MAX_PENDING, Listener
from csrun.runtime.wire.messages import Primed
from csrun.runtime.wire.rendezvous import (
    Endpoint,
    RunFolder,
    announce_done,
    announce_failed,
    await_results,
    join,
    new_unix_name,
)


@pytest.fixture(params=["unix", "tcp", "tcp6"])
def folders(request, tmp_path):
    """Folder of a run for the chief, and for a peer on the same machine or on another."""
    chief = RunFolder(tmp_path / "runs" / "0", "12", b"the secret")
    if request.param == "unix":
        return chief, chief
    if request.param == "tcp6" and not _has_ipv6():
        pytest.skip("no IPv6 on loopback")
    address = {"tcp": "127.0.0.1", "tcp6": "::1"}[request.param]
    here, there = (Host(f"node{n}", address) for n in (1, 2))
    return replace(chief, host=here), replace(chief, host=there)


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.fixture
def folder(folders):
    return folders[0]


@pytest.fixture
def remote_run(folders):
    return folders[1]


def in_thread(function, *args):
    box = {}

    def call() -> None:
        try:
            box["value"] = function(*args)
        except CsrunError as error:
            box["value"] = error

    thread = threading.Thread(target=call)
    thread.start()
    return thread, box


def raw_connection(folder: RunFolder) -> socket.socket:
    """Connection to the listener for peers of `folder`."""
    endpoint = stored.read(folder.endpoint, Endpoint, "the address")
    return endpoint.connect(folder.host, 5)


def send_word(connection: socket.socket, word: bytes) -> None:
    """Send a message of the challenge, framed for this kind of connection."""
    is_unix = connection.family == socket.AF_UNIX
    connection.sendall(word if is_unix else len(word).to_bytes(4, "big") + word)


def test_expected_peers_get_a_channel(folder, remote_run):
    listener = Listener(folder)
    thread, box = in_thread(join, remote_run, "streamer 1")
    channels = listener.accept({"streamer 1"})
    thread.join()
    box["value"].send(Primed())
    assert channels["streamer 1"].expect(Primed)[0] == Primed()
    for end in (listener, box["value"], channels["streamer 1"]):
        end.close()


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"secret": b"a guess"}, "streamer 1"),
        ({"job": "13"}, "streamer 1"),
        ({}, "streamer 9"),
    ],
)
def test_a_peer_with_a_wrong_secret_job_or_role_is_kept_out(folder, remote_run, changes, name):
    listener = Listener(folder)
    accepting, accepted = in_thread(listener.accept, {"streamer 1"})
    with pytest.raises(PeerLost):
        join(replace(remote_run, **changes), name)
    right = join(remote_run, "streamer 1")
    accepting.join()
    assert list(accepted["value"]) == ["streamer 1"]
    for end in (listener, right, accepted["value"]["streamer 1"]):
        end.close()


def test_a_peer_waits_while_the_chiefs_queue_is_full(folder, remote_run, monkeypatch):
    """Linux returns EAGAIN for a full queue of a Unix socket."""
    knocks, pauses = iter(range(50)), []
    connect = Endpoint.connect

    def crowded(self, host, timeout_s):
        if next(knocks) < 40:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return connect(self, host, timeout_s)

    monkeypatch.setattr(rendezvous, "sleep", pauses.append)
    monkeypatch.setattr(Endpoint, "connect", crowded)
    listener = Listener(folder)
    accepting, accepted = in_thread(listener.accept, {"streamer 1"})
    joined = join(remote_run, "streamer 1")
    accepting.join()
    assert len(pauses) >= 40
    for end in (listener, joined, accepted["value"]["streamer 1"]):
        end.close()


def test_a_proof_cannot_be_taken_from_the_listener(folder, remote_run):
    """Sending back the listener's own proof is not accepted."""
    listener = Listener(folder)
    accepting, accepted = in_thread(listener.accept, {"streamer 1"})
    with raw_connection(remote_run) as stranger:
        send_word(stranger, msgspec.msgpack.encode(Hello("streamer 1", new_nonce())))
        challenge = msgspec.msgpack.decode(Frames(stranger).receive_whole())
        send_word(stranger, msgspec.msgpack.encode({"proof": challenge["proof"]}))
        assert stranger.recv(1024) == b""
    for word in (b"not a message", b"\x81\xa4peer\xa1\xff", b"\x81\xa1x" + b"\x91" * 1000):
        with raw_connection(remote_run) as stranger:
            send_word(stranger, word)
            assert stranger.recv(1024) == b""
    right = join(remote_run, "streamer 1")
    accepting.join()
    for end in (listener, right, accepted["value"]["streamer 1"]):
        end.close()


def test_silent_strangers_keep_nobody_waiting(folder, remote_run):
    """More of them than are kept: the oldest are closed."""
    listener = Listener(folder)
    accepting, accepted = in_thread(listener.accept, {"streamer 1"})
    with ExitStack() as strangers:
        flood = [
            strangers.enter_context(raw_connection(remote_run)) for _ in range(MAX_PENDING + 9)
        ]
        right = join(remote_run, "streamer 1")
        accepting.join(60)
        assert flood[0].recv(1) == b""
    assert isinstance(right, Channel)
    for end in (listener, right, accepted["value"]["streamer 1"]):
        end.close()


def test_who_comes_under_the_name_of_one_who_is_in_is_named_and_hurts_nobody(
    folder, remote_run, caplog
):
    listener = Listener(folder)
    accepting, accepted = in_thread(listener.accept, {"streamer 1", "streamer 2"})
    first = join(remote_run, "streamer 1")
    with pytest.raises(
        CsrunError, match="streamer 1: another process already joined this run"
    ) as told:
        join(remote_run, "streamer 1")
    assert not isinstance(told.value, PeerLost)
    with pytest.raises(PeerLost):  # without the secret nobody learns who is in
        join(replace(remote_run, secret=b"a guess"), "streamer 1")
    last = join(remote_run, "streamer 2")
    accepting.join()
    said = "Rejected a second process of this job that joined as streamer 1"
    assert caplog.messages == [said]
    first.send(Primed())
    assert accepted["value"]["streamer 1"].expect(Primed)[0] == Primed()
    for end in (listener, first, last, *accepted["value"].values()):
        end.close()


def test_who_was_turned_away_tries_again(folder, remote_run, monkeypatch):
    """The first connections are dropped whatever they send, as in a flood."""
    listener = Listener(folder)
    accept, dropped = Listener._accept, []

    def oversubscribed(self, listening) -> None:
        if len(dropped) < 3:
            dropped.append(listening.accept()[0].close())
        else:
            accept(self, listening)

    monkeypatch.setattr(Listener, "_accept", oversubscribed)
    accepting, accepted = in_thread(listener.accept, {"streamer 1"})
    right = join(remote_run, "streamer 1")
    accepting.join(60)
    assert (len(dropped), isinstance(right, Channel)) == (3, True)
    for end in (listener, right, accepted["value"]["streamer 1"]):
        end.close()


def test_the_door_is_closed_behind_the_last_peer(folder, remote_run):
    listener = Listener(folder)
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        raw_connection(remote_run)


def test_an_address_of_no_machine_is_named(tmp_path):
    """192.0.2.0/24 is for documentation: nobody has it (RFC 5737)."""
    folder = RunFolder(tmp_path / "run", "1", b"s", host=Host("node7", "192.0.2.1"))
    with pytest.raises(CsrunError, match=r"^node node7: cannot listen on 192\.0\.2\.1: "):
        Listener(folder)


def test_who_comes_late_gets_the_results(folder):
    announce_done(folder, {"loss": 0.25})
    assert join(folder, "streamer 1") == {"loss": 0.25}


def test_results_without_a_number_are_told_as_they_are(folder):
    announce_done(folder, {"loss": float("nan"), "ratio": float("inf"), "third": 1 / 3})
    told = join(folder, "streamer 1")
    assert np.isnan(told["loss"])
    assert (told["ratio"], told["third"]) == (np.inf, 1 / 3)


def test_results_that_cannot_be_written_end_no_run(folder, caplog):
    """The training is finished: a full disk loses nothing of it."""
    folder.done.mkdir(parents=True)  # a rename over a folder is refused, even to root
    announce_done(folder, {"loss": 0.25})
    (said,) = caplog.messages
    assert said.startswith(f"{folder.done}: cannot be written: Is a directory; the run succeeded")


@pytest.mark.parametrize(
    ("error", "kinds", "message"),
    [
        (UsageError("no checkpoint"), (UsageError, PeerLost), "^no checkpoint$"),
        (CsrunError("loss is nan"), (PeerLost,), "^loss is nan$"),
        (KeyError("digit"), (PeerLost,), "^KeyError: 'digit'$"),
    ],
)
def test_nobody_waits_for_a_run_that_the_chief_has_given_up(folder, error, kinds, message):
    """As the chief's own error class, for a script that catches it; never as a first cause."""
    listener = Listener(folder)
    listener.close()
    announce_failed(folder, error)
    for _ in range(2):  # with an endpoint that nobody listens at, and without
        with pytest.raises(PeerLost, match=message) as caught:
            join(folder, "streamer 1")
        assert all(isinstance(caught.value, kind) for kind in kinds)
        assert isinstance(caught.value, UsageError) == isinstance(error, UsageError)
        folder.endpoint.unlink(missing_ok=True)


def test_a_chief_in_another_run_is_said(folder):
    listener = Listener(folder)
    thread, box = in_thread(await_results, folder, "streamer 1")
    channels = listener.accept({"streamer 1"})
    thread.join()
    assert "the chief is in another run: every task must make the same" in str(box["value"])
    for end in (listener, *channels.values()):
        end.close()


def ended(folder: RunFolder, peer: str) -> RunFolder:
    """Folder after the task of a peer has ended."""
    file = folder.path.parent / "ended"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    return replace(folder, ended={peer: file, "streamer 7": folder.path / "not yet"})


def test_nobody_waits_for_a_peer_that_has_ended(folder):
    listener = Listener(ended(folder, "streamer 2"))
    with pytest.raises(CsrunError, match="streamer 2 ended before it joined"):
        listener.accept({"streamer 2", "streamer 7"})
    listener.close()


def test_strangers_do_not_hide_that_a_peer_has_ended(folder, remote_run):
    listener = Listener(ended(folder, "streamer 2"))
    accepting, accepted = in_thread(listener.accept, {"streamer 2"})
    while accepting.is_alive():
        with raw_connection(remote_run):
            accepting.join(0.05)
    assert "streamer 2 ended before it joined" in str(accepted["value"])
    listener.close()


def test_nobody_waits_for_a_chief_that_has_ended(folder):
    with pytest.raises(CsrunError, match="the chief ended without starting this run"):
        join(ended(folder, "chief"), "streamer 1")


def test_a_chief_that_has_ended_leaves_its_results(folder):
    announce_done(folder, {"loss": 0.5})
    assert join(ended(folder, "chief"), "streamer 1") == {"loss": 0.5}


@needs_two_accounts
def test_another_account_is_sent_away_though_it_has_the_secret(tmp_path):
    folder = RunFolder(tmp_path / "run", "12", b"the secret")
    with closing(Listener(folder)) as listener:
        endpoint = stored.read(folder.endpoint, Endpoint, "the address")
        joined = {}
        accepting = threading.Thread(target=lambda: joined.update(listener.accept({"streamer 1"})))
        accepting.start()
        said = as_account(OTHER, lambda: _says_hello(endpoint))
        assert isinstance(said, ConnectionError), said
        with closing(join(folder, "streamer 1")):  # the true one goes on
            accepting.join()
        joined["streamer 1"].close()


def _says_hello(endpoint):
    # as a stranger who does not look whom it talks to
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(f"\0{endpoint.unix}")
        prove(connection, b"the secret", "12", "streamer 1")


@needs_two_accounts
def test_a_listener_of_another_account_is_no_chief(tmp_path):
    """A listener in the chief's place, with the secret, is not even greeted."""
    name = new_unix_name()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        os.seteuid(OTHER)
        try:
            listening.bind(f"\0{name}")
            listening.listen()
        finally:
            os.seteuid(0)
        with pytest.raises(PermissionError, match=f"another account, uid {OTHER}"):
            Endpoint(name, None, None).connect(None, 5)
