"""`tracekit open`: one file, one origin, this machine, once."""

import http.client
import socket
import struct
import threading
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner

from tracekit.cli.open import command
from tracekit.errors import TracekitError, UsageError
from tracekit.trace.serve import UI, TraceServer

TRACE = b"\x0a\x02\x50\x01" * 100_000


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "a trace.pftrace"
    path.write_bytes(TRACE)
    return path


def ask(server: TraceServer, method: str, place: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, place, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_the_page_gets_the_trace_once_and_nobody_else_does(trace: Path) -> None:
    server = TraceServer(trace, port=0)
    thread = threading.Thread(target=server.serve)
    thread.start()
    page = {"Origin": UI}
    assert ask(server, "GET", server.place, {})[0] == 403
    assert ask(server, "GET", server.place, {"Origin": "https://evil.example"})[0] == 403
    assert ask(server, "GET", "/a%20trace.pftrace", page)[0] == 404
    assert ask(server, "GET", "/../../etc/passwd", page)[0] == 404
    assert ask(server, "GET", server.place, page | {"Host": f"evil.example:{server.port}"})[0] == 421
    assert ask(server, "POST", server.place, page)[0] == 501
    status, headers, _ = ask(server, "OPTIONS", server.place, page)
    assert (status, headers["Access-Control-Allow-Private-Network"]) == (204, "true")
    assert thread.is_alive()
    status, headers, body = ask(server, "GET", server.place, page)
    assert (status, headers["Access-Control-Allow-Origin"], body) == (200, UI, TRACE)
    thread.join(10)
    assert not thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        ask(server, "GET", server.place, page)


def test_head_tells_the_size_and_others_get_no_header(trace: Path) -> None:
    server = TraceServer(trace, port=0)
    thread = threading.Thread(target=server.serve)
    thread.start()
    page = {"Origin": UI}
    status, headers, body = ask(server, "HEAD", server.place, page)
    assert (status, headers["Content-Length"], body) == (200, str(len(TRACE)), b"")
    assert headers["Access-Control-Allow-Origin"] == UI
    for method in ("GET", "HEAD", "OPTIONS"):
        for refused in ({}, {"Origin": "null"}, {"Origin": "https://evil.example"}, {"Origin": UI + ".evil.example"}):
            status, headers, body = ask(server, method, server.place, refused)
            assert (status, body) == (403, b"")
            assert not [name for name in headers if name.startswith("Access-Control")]
        assert ask(server, method, server.place + "x", page)[0] == 404
    assert thread.is_alive()
    assert ask(server, "GET", server.place, page)[2] == TRACE
    thread.join(10)
    assert not thread.is_alive()


def test_a_page_that_goes_away_may_ask_again(trace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace.write_bytes(TRACE * 40)  # more than the system takes off our hands
    server = TraceServer(trace, port=0)
    thread = threading.Thread(target=server.serve)
    thread.start()
    request = f"GET {server.place} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nOrigin: {UI}\r\n\r\n"
    for sent in (b"", b"GET /", request.encode()):
        gone = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
        gone.sendall(sent)
        gone.close()
    away = trace.rename(trace.with_name("away"))
    assert ask(server, "GET", server.place, {"Origin": UI})[0] == 404
    away.rename(trace)
    assert ask(server, "GET", server.place, {"Origin": UI})[2] == TRACE * 40
    thread.join(10)
    assert not thread.is_alive()
    assert capfd.readouterr().err == ""


def test_the_link_names_the_address(trace: Path) -> None:
    server = TraceServer(trace, port=0)
    server.close()
    link = urlsplit(server.link)
    assert f"{link.scheme}://{link.netloc}" == UI
    assert parse_qs(link.fragment.partition("?")[2])["url"] == [server.address]
    assert server.address.startswith(f"http://127.0.0.1:{server.port}/")
    other = TraceServer(trace, port=0)
    other.close()
    assert other.place != server.place


def test_what_cannot_be_served_says_why(trace: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        TraceServer(trace.with_name("none"), port=0)
    with pytest.raises(UsageError, match="no address"):
        TraceServer(trace, ui="ui.perfetto.dev", port=0)
    first = TraceServer(trace, port=0)
    with pytest.raises(TracekitError, match=str(first.port)):
        TraceServer(trace, port=first.port)
    first.close()


def test_the_command_prints_the_link_and_ends_after_the_fetch(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[TraceServer] = []
    monkeypatch.setattr(TraceServer, "serve", lambda self: served.append(self))
    done = CliRunner().invoke(command, [str(trace), "--no-browser", "--port", "0"])
    (server,) = served
    server.close()
    assert done.exit_code == 0
    assert done.stdout == server.link + "\n"
