"""Who is let in, and who is kept out."""

import socket
import threading
from dataclasses import replace

import msgspec
import pytest

from csrun.errors import CsrunError, PeerLost, UsageError
from csrun.runtime.messages import Primed
from csrun.runtime.peer import learn
from csrun.runtime.wire.auth import Hello, new_nonce
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.listener import Listener
from csrun.runtime.wire.rendezvous import RunFolder, announce_done, announce_failed, join


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "runs" / "0", "12", b"the secret")


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
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    endpoint = msgspec.json.decode(folder.endpoint.read_bytes())
    connection.connect("\0" + endpoint["unix"])
    return connection


def test_expected_peers_get_a_channel(folder):
    listener = Listener(folder)
    thread, box = in_thread(join, folder, "streamer 1")
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
def test_a_peer_with_a_wrong_secret_job_or_role_is_kept_out(folder, changes, name):
    listener = Listener(folder)
    accepting, accepted = in_thread(listener.accept, {"streamer 1"})
    false = RunFolder(**{"path": folder.path, "job": "12", "secret": folder.secret} | changes)
    with pytest.raises(PeerLost):
        join(false, name)
    right = join(folder, "streamer 1")
    accepting.join()
    assert list(accepted["value"]) == ["streamer 1"]
    for end in (listener, right, accepted["value"]["streamer 1"]):
        end.close()


def test_a_proof_cannot_be_taken_from_the_listener(folder):
    """Sending the listener's own proof back does not open the door."""
    listener = Listener(folder)
    accepting, accepted = in_thread(listener.accept, {"streamer 1"})
    with raw_connection(folder) as stranger:
        stranger.send(msgspec.msgpack.encode(Hello("streamer 1", new_nonce())))
        challenge = msgspec.msgpack.decode(stranger.recv(1024))
        stranger.send(msgspec.msgpack.encode({"proof": challenge["proof"]}))
        assert stranger.recv(1024) == b""
    with raw_connection(folder) as stranger:
        stranger.send(b"not a message")
        assert stranger.recv(1024) == b""
    right = join(folder, "streamer 1")
    accepting.join()
    for end in (listener, right, accepted["value"]["streamer 1"]):
        end.close()


def test_a_silent_stranger_keeps_nobody_waiting(folder):
    listener = Listener(folder)
    accepting, accepted = in_thread(listener.accept, {"streamer 1"})
    with raw_connection(folder):
        right = join(folder, "streamer 1")
        accepting.join(5)
    assert isinstance(right, Channel)
    for end in (listener, right, accepted["value"]["streamer 1"]):
        end.close()


def test_who_comes_late_gets_the_results(folder):
    announce_done(folder, {"loss": 0.25})
    assert join(folder, "streamer 1") == {"loss": 0.25}


@pytest.mark.parametrize(
    ("error", "kinds", "message"),
    [
        (UsageError("no checkpoint"), (UsageError, PeerLost), "^no checkpoint$"),
        (CsrunError("loss is nan"), (PeerLost,), "^loss is nan$"),
        (KeyError("digit"), (PeerLost,), "^KeyError: 'digit'$"),
    ],
)
def test_nobody_waits_for_a_run_that_the_chief_has_given_up(folder, error, kinds, message):
    """As the chief's own kind of error, for a script that catches it; but never a first cause."""
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
    thread, box = in_thread(learn, folder, "streamer 1")
    channels = listener.accept({"streamer 1"})
    thread.join()
    assert "the chief is in another run: every task must make the same" in str(box["value"])
    for end in (listener, *channels.values()):
        end.close()


def ended(folder: RunFolder, peer: str) -> RunFolder:
    """The same folder after the task of a peer has ended."""
    file = folder.path.parent / "ended"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    return replace(folder, ended={peer: file, "streamer 7": folder.path / "not yet"})


def test_nobody_waits_for_a_peer_that_has_ended(folder):
    listener = Listener(ended(folder, "streamer 2"))
    with pytest.raises(CsrunError, match="streamer 2 has ended without taking part"):
        listener.accept({"streamer 2", "streamer 7"})
    listener.close()


def test_nobody_waits_for_a_chief_that_has_ended(folder):
    with pytest.raises(CsrunError, match="the chief has ended without this run"):
        join(ended(folder, "chief"), "streamer 1")


def test_a_chief_that_has_ended_leaves_its_results(folder):
    announce_done(folder, {"loss": 0.5})
    assert join(ended(folder, "chief"), "streamer 1") == {"loss": 0.5}
