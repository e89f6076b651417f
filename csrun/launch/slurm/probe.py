"""Probe of one node: `python -P -m csrun.launch.slurm.probe FOLDER NODES`, one task per node.

It writes a file with its address into FOLDER, which all nodes should share, waits for the files of
the others, requests the time of each over TCP, and prints its facts as one line of JSON.
"""

import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from csrun.context import environment
from csrun.launch.preflight.facts import NodeFacts, facts_here
from csrun.launch.slurm.identity import address_towards

WAIT_S = 20.0
CONNECT_S = 5.0
POLL_S = 0.05
_TIME = struct.Struct(">d")


class ProbeAddress(msgspec.Struct, frozen=True):
    """Address at which the probe of a node answers."""

    node: str
    address: str
    port: int


def main(argv: list[str]) -> int:
    folder, nodes = Path(argv[0]), int(argv[1])
    place = environment.slurm_place()
    facts = facts_here(place.node, folder.parent)
    if not facts.folder_problem and folder.is_dir():
        address = address_towards(place.launch_address)
        facts = _with_peers(facts, folder, nodes, address, place.node_id)
    print(msgspec.json.encode(facts).decode(), flush=True)
    return 0


def _with_peers(
    facts: NodeFacts, folder: Path, nodes: int, address: str, node_id: int
) -> NodeFacts:
    with socket.create_server((address, 0), backlog=nodes) as server:
        threading.Thread(target=_serve_time, args=(server,), daemon=True).start()
        card = ProbeAddress(facts.node, address, server.getsockname()[1])
        _leave(folder / f"card-{node_id}.json", msgspec.json.encode(card))
        _wait(lambda: len([*folder.glob("card-*.json")]) >= nodes)
        cards = [
            msgspec.json.decode(path.read_bytes(), type=ProbeAddress)
            for path in folder.glob("card-*")
        ]
        ahead_s: dict[str, float] = {}
        unreached: dict[str, str] = {}
        for each in cards:
            try:
                ahead_s[each.node] = _clock_ahead_s(each)
            except OSError as error:
                unreached[each.node] = f"{each.address} port {each.port}: {error}"
        _leave(folder / f"done-{node_id}", b"")
        # Others request our time until all probes have written their second file.
        _wait(lambda: len([*folder.glob("done-*")]) >= len(cards))
    return msgspec.structs.replace(
        facts,
        read_from=tuple(sorted(each.node for each in cards)),
        clock_ahead_s=ahead_s,
        unreached=unreached,
    )


def _leave(path: Path, data: bytes) -> None:
    """Write a file that is complete as soon as it has its name."""
    made = path.with_name(f".{path.name}")
    made.write_bytes(data)
    made.rename(path)


def _wait(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < until_s:
        time.sleep(POLL_S)


def _serve_time(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:  # closed: the other probes are done
            return
        with connection:
            connection.sendall(_TIME.pack(time.time()))


def _clock_ahead_s(card: ProbeAddress) -> float:
    """Offset of a node's clock to ours, measured at half of the round trip."""
    with socket.create_connection((card.address, card.port), CONNECT_S) as connection:
        asked_s = time.time()
        data = connection.recv(_TIME.size, socket.MSG_WAITALL)
        answered_s = time.time()
    if len(data) < _TIME.size:
        raise ConnectionError("it closed the connection")
    reported_s: float = _TIME.unpack(data)[0]
    return reported_s - (asked_s + answered_s) / 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
