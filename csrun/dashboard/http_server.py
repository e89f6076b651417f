"""Local server of the dashboard: read-only, and only with the token.

Source: HTML Living Standard, section Server-sent events; RFC 9110
"""

import hmac
import re
import select
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_urlsafe
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from csrun.base.errors import CsrunError, UsageError
from csrun.base.files import read_file
from csrun.dashboard.page_text import served_page, wafer_of
from csrun.dashboard.run_catalog import RunCatalog, json_of
from csrun.dashboard.run_feed import IDLE_S, IDLE_SHARE, RunReader

ADDRESS = "127.0.0.1"
TICK_S = 1.0
TABLE_S = 2.0
MOST_FILE_BYTES = 256 << 20
REQUEST_S = 30.0  # for a client to send its request, or to receive a response
_STYLES_AND_SCRIPTS = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
#: Without the page's origin, because a report is in a folder that other accounts may have written.
_REPORT_POLICY = f"sandbox allow-scripts; {_STYLES_AND_SCRIPTS}"
_PAGE_POLICY = f"{_STYLES_AND_SCRIPTS}; img-src data:; connect-src 'self'; form-action 'none'"
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the address contains the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
Query = dict[str, str]


class DashboardServer(ThreadingHTTPServer):
    """Server of a catalog of runs, on this machine only; `url` contains the token."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, catalog: RunCatalog, port: int = 0) -> None:
        super().__init__((ADDRESS, port), _Handler)
        self._catalog, self._lock = catalog, Lock()
        self.runs = RunReader(catalog, self._lock)
        self.token = token_urlsafe(24)
        self.page = served_page().encode()
        self._table, self._table_at_s = "", -float("inf")

    def read_ahead(self) -> None:
        """Read the table, which is slow at first, while the user opens a browser."""
        Thread(target=self.table, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_address[1]}/?token={self.token}"

    def query(self, read: Callable[[RunCatalog], Any]) -> Any:
        """Query the catalog, which only one thread at a time may do."""
        with self._lock:
            return read(self._catalog)

    def table(self) -> str:
        """Return the table of runs as JSON, read again when it is old."""
        with self._lock:
            began_s = time.monotonic()
            if began_s >= self._table_at_s:
                self._table = json_of(self._catalog.rows())
                ended_s = time.monotonic()
                rest_s = min(IDLE_S, IDLE_SHARE * (ended_s - began_s))
                self._table_at_s = ended_s + max(TABLE_S, rest_s)
            return self._table

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report a bug; a closed connection is not one."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Handler of one request."""

    server: DashboardServer
    server_version, sys_version = "csrun", ""
    timeout = REQUEST_S

    def do_GET(self) -> None:
        """Answer a request with the token."""
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        if not hmac.compare_digest(query.get("token", "").encode(), self.server.token.encode()):
            self._respond(HTTPStatus.FORBIDDEN, b"403: the address needs its token\n", "text/plain")
            return
        try:
            self._route(parts.path, query)
        except UsageError as error:
            self._json({"error": str(error)}, HTTPStatus.NOT_FOUND)
        except (CsrunError, OSError) as error:
            self._json({"error": str(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)

    def _route(self, path: str, query: Query) -> None:
        run, read = query.get("run", ""), self.server.query
        match path:
            case "/":
                self._respond(HTTPStatus.OK, self.server.page, "text/html", policy=_PAGE_POLICY)
            case "/events":
                self._events(run)
            case "/run":
                self._json(read(lambda catalog: catalog.detail(run)))
            case "/settings":
                self._json(read(lambda catalog: catalog.settings(run)))
            case "/wafer":
                self._json(read(lambda catalog: wafer_of(catalog, run)))
            case "/log":
                task, search = query.get("task", ""), query.get("search", "")
                self._json(read(lambda catalog: catalog.log(run, task, search)))
            case "/file":
                self._file(run, query.get("name", ""))
            case _:
                raise UsageError(f"{path}: no such address")

    def _events(self, run: str) -> None:
        """Send the table and a run whenever they change, until the page is closed."""
        self._head(HTTPStatus.OK, "text/event-stream")
        feed = self.server.runs.feed(run) if run else None
        sent = ""
        # a page sends nothing here: its connection is readable when it is closed
        closed = select.poll()
        closed.register(self.connection, select.POLLIN)
        while True:
            table = self.server.table()
            if table != sent:
                self._event("table", table)
                sent = table
            if feed is not None and (message := feed.message()) is not None:
                self._event(*message)
            if closed.poll(1000 * TICK_S):
                return

    def _event(self, name: str, text: str) -> None:
        self.wfile.write(f"event: {name}\ndata: {text}\n\n".encode())

    def _file(self, run: str, name: str) -> None:
        path = self.server.query(lambda catalog: catalog.file(run, name))
        if path is None:
            raise UsageError(f"{name}: no such file of run {run}")
        data = read_file(path, MOST_FILE_BYTES)
        if path.suffix == ".html":
            self._respond(HTTPStatus.OK, data, "text/html", policy=_REPORT_POLICY)
            return
        saved = re.sub(r"[^\w.-]", "_", path.name, flags=re.ASCII)
        more = {"Content-Disposition": f'attachment; filename="{saved}"'}
        self._respond(HTTPStatus.OK, data, "application/json", more)

    def _json(self, value: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._respond(status, json_of(value).encode(), "application/json")

    def _respond(
        self,
        status: HTTPStatus,
        body: bytes,
        kind: str,
        more: dict[str, str] | None = None,
        policy: str = "default-src 'none'",
    ) -> None:
        length = {"Content-Length": str(len(body))}
        self._head(status, kind, (more or {}) | length, policy)
        self.wfile.write(body)

    def _head(
        self,
        status: HTTPStatus,
        kind: str,
        more: dict[str, str] | None = None,
        policy: str = "default-src 'none'",
    ) -> None:
        self.send_response(status)
        charset = "" if kind == "application/json" else "; charset=utf-8"
        headers = {"Content-Type": kind + charset, "Content-Security-Policy": policy}
        for name, value in (_HEADERS | headers | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the address of each request contains the token."""
