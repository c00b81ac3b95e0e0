"""Showing programs' output as it comes, without ever holding them up: a thread with a bounded queue."""

import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field

#: Bytes that may wait to be shown. A terminal should not lag minutes behind; a pipe or file should get all.
TERMINAL_BYTES = 1 << 20
PIPE_BYTES = 256 << 20

#: How long the end of a run waits for a reader that takes nothing at all.
PATIENCE_S = 5.0


@dataclass(slots=True)
class Display:
    """Writes what it is given to two descriptors, in order.

    What a slow reader has no room for is left out of the display and counted in `dropped_bytes`; when a reader
    goes away (a closed pipe), showing ends and `closed` says so. The capture is not touched by either.
    """

    out: int
    err: int
    dropped_bytes: int = 0
    closed: bool = False
    _queue: deque[tuple[int, bytes]] = field(default_factory=deque)
    _waiting_bytes: int = 0
    _written: int = 0
    _change: threading.Condition = field(default_factory=threading.Condition)
    _ended: bool = False
    _thread: threading.Thread | None = None
    _limit: int = PIPE_BYTES
    _open_line: bool = False

    def start(self) -> None:
        """Begin to show."""
        self._limit = TERMINAL_BYTES if os.isatty(self.out) else PIPE_BYTES
        self._thread = threading.Thread(target=self._show, name="tracekit-display", daemon=True)
        self._thread.start()

    def put(self, target: int, data: bytes) -> None:
        """Queue bytes for a descriptor; never waits."""
        if self.closed:
            return
        with self._change:
            if self._waiting_bytes > self._limit:
                self.dropped_bytes += len(data)
                return
            self._queue.append((target, data))
            self._waiting_bytes += len(data)
            self._change.notify()

    def finish(self) -> None:
        """Show what is left, as long as the reader takes any of it; a last line of `err` that has no end gets one."""
        with self._change:
            self._ended = True
            self._change.notify()
        seen, since = -1, time.monotonic()
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.05)
            if self._written != seen:
                seen, since = self._written, time.monotonic()
            elif time.monotonic() - since > PATIENCE_S:
                self.dropped_bytes += self._waiting_bytes
                self.closed = True
                return

    def _show(self) -> None:
        while True:
            with self._change:
                while not self._queue and not self._ended:
                    self._change.wait()
                if not self._queue:
                    break
                target, data = self._queue.popleft()
                self._waiting_bytes -= len(data)
            if target == self.err:
                self._open_line = not data.endswith(b"\n")
            self._try_to_write(target, data)
            if self.closed:
                return
        if self._open_line:  # what tracekit says next must not stand behind it
            self._try_to_write(self.err, b"\n")

    def _try_to_write(self, target: int, data: bytes) -> None:
        try:
            self._write(target, data)
        except OSError:  # nobody reads any more
            self.closed = True

    def _write(self, target: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            done = os.write(target, rest[: 1 << 16])
            self._written += done
            rest = rest[done:]


class Prefixed:
    """Whole lines of one program with its name before each, for displays that mix several programs."""

    def __init__(self, name: str) -> None:
        self._prefix = f"[{name}] ".encode()
        self._part = b""

    def lines(self, data: bytes) -> bytes:
        r"""Return the lines that are whole by now.

        >>> p = Prefixed("rpc-0")
        >>> p.lines(b"one\ntw"), p.lines(b"o\n"), p.lines(b"end"), p.rest()
        (b'[rpc-0] one\n', b'[rpc-0] two\n', b'', b'[rpc-0] end\n')
        """
        *whole, self._part = (self._part + data).split(b"\n")
        return b"".join(self._prefix + line + b"\n" for line in whole)

    def rest(self) -> bytes:
        """Return a last line that had no end."""
        part, self._part = self._part, b""
        return self._prefix + part + b"\n" if part else b""
