"""A dashboard served in this process, and its responses."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlencode, urlsplit

from support.jobs import STALL_S

from csrun.dashboard import RunCatalog
from csrun.dashboard.http_server import DashboardServer
from csrun.launch import backend_of
from csrun.site import load


def catalog_of(folder: Path) -> RunCatalog:
    site = load("local")
    return RunCatalog(site, backend_of(site), folder)


@contextmanager
def serving(folder: Path) -> Iterator[DashboardServer]:
    """Server in a thread of this process."""
    with DashboardServer(catalog_of(folder)) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(
    server: DashboardServer, path: str, token: str | None = None, **query: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Status, headers and body of a response, with the server's token by default."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=STALL_S)
    try:
        words = urlencode(query | {"token": server.token if token is None else token})
        connection.request("GET", f"{path}?{words}")
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def asked(server: DashboardServer, path: str, **query: str) -> Any:
    """JSON of a response."""
    status, _, body = get(server, path, **query)
    assert status == 200, body
    return json.loads(body)


@contextmanager
def events(server: DashboardServer, run: str = "") -> Iterator[Iterator[tuple[str, Any]]]:
    """Server-sent events of the table, and of a run: name and data of each."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=STALL_S)
    try:
        connection.request("GET", f"/events?{urlencode({'run': run, 'token': server.token})}")
        with closing(connection.getresponse()) as answer:  # which has the socket
            yield _messages(answer)
    finally:
        connection.close()


def _messages(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    name = ""
    while line := answer.readline().decode():
        field, _, value = line.rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)
