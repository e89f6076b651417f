"""Two hosts for a test: network namespaces with a link between them (iproute2, needs root)."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class NetworkHost:
    """A namespace: its name in `ip netns`, its file, and its address."""

    name: str
    address: str

    @property
    def file(self) -> str:
        return f"/run/netns/{self.name}"


@dataclass(frozen=True)
class Network:
    """Two hosts, each with a separate device name."""

    first: NetworkHost
    second: NetworkHost

    def cut(self) -> None:
        """Drop all further packets."""
        _ip("-netns", self.second.name, "link", "set", self.second.name, "down")

    def bytes_sent(self) -> int:
        """Bytes sent from the second host to the first."""
        path = f"/sys/class/net/{self.second.name}/statistics/tx_bytes"
        return int(_ip("netns", "exec", self.second.name, "cat", path))


@contextmanager
def network() -> Iterator[Network]:
    """The hosts, until the context ends; skips the test if they are not available."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
        pytest.skip("network namespaces need root, iproute2 and nsenter")
    names = [f"csrun{os.getpid()}{letter}" for letter in "ab"]
    hosts = Network(*(NetworkHost(name, f"10.203.0.{n}") for n, name in enumerate(names, 1)))
    try:
        for host in (hosts.first, hosts.second):
            _ip("netns", "add", host.name)
        first, second = hosts.first.name, hosts.second.name
        peer = ("peer", "name", second, "netns", second)
        _ip("-netns", first, "link", "add", first, "type", "veth", *peer)
        for host in (hosts.first, hosts.second):
            _ip("-netns", host.name, "addr", "add", f"{host.address}/24", "dev", host.name)
            _ip("-netns", host.name, "link", "set", host.name, "up")
            _ip("-netns", host.name, "link", "set", "lo", "up")
        yield hosts
    finally:
        for host in (hosts.first, hosts.second):
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
