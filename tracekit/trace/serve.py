"""`tracekit open`: hand one trace to Perfetto's page in the browser, from this machine, without uploading it.

The page fetches a trace from the address that its own link names. Its content policy lets it ask this machine on port
9001 only, so another port works with a copy of the page alone.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import quote, urlsplit

from tracekit.errors import TracekitError, UsageError
from tracekit.unlike import FRONT_BYTES, is_trace

UI = "https://ui.perfetto.dev"
PORT = 9001
_HOST = "127.0.0.1"


class TraceServer:
    """Serves one file on loopback, to one origin, until it was fetched once.

    Attributes:
        link: the page's address that opens the trace.
        address: where the trace itself is served; its path cannot be guessed.
    """

    def __init__(self, path: str | Path, *, ui: str = UI, port: int = PORT) -> None:
        """Take the port; nothing is answered before `serve`.

        Raises:
            UsageError: there is no such file, it is no trace, or `ui` is no address.
            TracekitError: the port is taken.
        """
        self.path = Path(path)
        if not self.path.is_file():
            raise UsageError(f"{path}: no such file; write one with `tracekit convert`")
        _require_trace(self.path)
        page = urlsplit(ui)
        if page.scheme not in ("http", "https") or not page.netloc:
            raise UsageError(f"{ui}: is no address of a page, as in {UI}")
        self.origin = f"{page.scheme}://{page.netloc}"
        self.place = f"/{secrets.token_urlsafe(16)}/{quote(self.path.name)}"
        self.fetched = False
        try:
            self._server = HTTPServer((_HOST, port), self._handler())
        except OSError as error:
            raise TracekitError(
                f"port {port} of {_HOST} cannot be taken ({error.strerror}); another `tracekit open` or a "
                "trace_processor may still run there: stop it"
            ) from error
        self.port = self._server.server_port
        self.address = f"http://{_HOST}:{self.port}{self.place}"
        self.link = f"{ui.rstrip('/')}/#!/?url={quote(self.address, safe='')}"

    def serve(self) -> None:
        """Answer until the trace was fetched whole; then, or when interrupted, let go of the port."""
        try:
            while not self.fetched:
                self._server.handle_request()
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the port."""
        self._server.server_close()

    def refusal(self, headers: Mapping[str, str], place: str) -> HTTPStatus | None:
        """Return why a request is refused, None if it is not.

        The host must be this machine by its own name: a foreign page whose name was bent to this address is refused.
        """
        if headers.get("Host") not in (f"{_HOST}:{self.port}", f"localhost:{self.port}"):
            return HTTPStatus.MISDIRECTED_REQUEST
        if headers.get("Origin") != self.origin:
            return HTTPStatus.FORBIDDEN
        return None if place == self.place else HTTPStatus.NOT_FOUND

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            """Answers one request."""

            timeout = 10  # a client that connects and says nothing must not hold the one file

            def handle(self) -> None:
                """Answer; a page that went away may ask again, so the trace does not count as fetched."""
                with contextlib.suppress(ConnectionError):
                    super().handle()

            def do_GET(self) -> None:
                """Send the trace."""
                if not self._refused() and self._send(whole=True):
                    server.fetched = True

            def do_HEAD(self) -> None:
                """Tell the size of the trace; that is not fetching it."""
                if not self._refused():
                    self._send(whole=False)

            def do_OPTIONS(self) -> None:
                """Answer what a browser asks before it fetches from a private address."""
                if not self._refused():
                    allowed = {
                        "Access-Control-Allow-Methods": "GET, HEAD",
                        "Access-Control-Allow-Private-Network": "true",
                    }
                    self._head(HTTPStatus.NO_CONTENT, allowed)

            def _send(self, *, whole: bool) -> bool:
                """Send the head, and the trace if it is wanted; return whether the file is still there."""
                try:
                    file = server.path.open("rb")
                except FileNotFoundError:
                    self._refuse(HTTPStatus.NOT_FOUND)
                    return False
                with file:
                    size = os.fstat(file.fileno()).st_size
                    self._head(HTTPStatus.OK, {"Content-Type": "application/octet-stream", "Content-Length": str(size)})
                    if whole:
                        shutil.copyfileobj(file, self.wfile)
                return True

            def _refused(self) -> bool:
                status = server.refusal(dict(self.headers.items()), self.path)
                if status is not None:
                    self._refuse(status)
                return status is not None

            def _refuse(self, status: HTTPStatus) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def _head(self, status: HTTPStatus, headers: Mapping[str, str]) -> None:
                self.send_response(status)
                self.send_header("Access-Control-Allow-Origin", server.origin)
                self.send_header("Vary", "Origin")
                self.send_header("Cache-Control", "no-store")
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Stay quiet: a library prints nothing."""

        return Handler


def _require_trace(path: Path) -> None:
    """Raise if a file is nothing that the page can show."""
    try:
        with path.open("rb") as file:
            front = file.read(FRONT_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    if is_trace(front):
        return
    if b'"$schema":"https://www.speedscope.app' in front.replace(b" ", b""):
        raise UsageError(f"{path}: is a flame graph for https://www.speedscope.app; Perfetto shows timelines only")
    raise UsageError(f"{path}: is no trace; make one of a log with `tracekit convert {path.name} -o FILE.pftrace`")
