"""The tee: programs' outputs to files, byte for byte, with arrival stamps. One thread for all streams.

A read takes what stands in the pipe; its stamp is written first, then its bytes, then they are shown and looked
at. After a read of little the thread rests for `PAUSE_S`: a flood of single lines then costs a read per
millisecond, not one per line, and the program pays for no wake-ups. The pipes are made as large as the system
allows, so a program waits only when the disk is slower than it prints.
"""

import errno
import fcntl
import os
import re
import selectors
import threading
import time
import tty
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit import stamps
from tracekit.capture.display import Display, Prefixed
from tracekit.capture.errors import CaptureError
from tracekit.capture.watch import Hit, StallWatch, Watch

if TYPE_CHECKING:
    import zstandard

PIPE_BYTES = stamps.READ_BYTES
PAUSE_S = 0.001

#: A read of less than this share of the pipe is "little".
_LITTLE = 8
_SMALL_READ = 1 << 16

#: A compressed frame is closed at this size or age: what a killed capture may lose.
FRAME_BYTES = 1 << 20
FRAME_S = 0.25


class DiskError(Exception):
    """A log could not be written on: the capture stops there, the program does not."""

    def __init__(self, reason: str, lost: bytes) -> None:
        super().__init__(reason)
        #: What had been taken and could not be stored.
        self.lost = lost


@dataclass(slots=True)
class _Plain:
    """An uncompressed log."""

    fd: int

    def write(self, data: bytes) -> None:
        _write_all(self.fd, data)

    def flush(self, now_ns: int) -> None:
        """Do nothing: every byte is written at once."""

    def finish(self) -> None:
        """Do nothing."""

    def drop(self) -> bytes:
        """Return what is held and not stored: nothing."""
        return b""


@dataclass(slots=True)
class _Packed:
    """A log of zstd frames, each whole: closed at `FRAME_BYTES` or after `FRAME_S`."""

    fd: int
    compressor: "zstandard.ZstdCompressor"
    parts: list[bytes] = field(default_factory=list)
    held: int = 0
    since_ns: int = 0

    def write(self, data: bytes) -> None:
        if not self.parts:
            self.since_ns = time.monotonic_ns()
        self.parts.append(data)
        self.held += len(data)
        if self.held >= FRAME_BYTES:
            self.finish()

    def flush(self, now_ns: int) -> None:
        if self.parts and now_ns - self.since_ns > FRAME_S * 1e9:
            self.finish()

    def finish(self) -> None:
        if not self.parts:
            return
        data = self.drop()
        frame = self.compressor.compress(data)
        start = os.lseek(self.fd, 0, os.SEEK_END)
        try:
            _write_all(self.fd, frame)
        except DiskError as error:
            os.ftruncate(self.fd, start)  # half a frame would spoil those before it
            raise DiskError(str(error), data) from error

    def drop(self) -> bytes:
        """Give up what is not in a frame yet, and return it."""
        data = b"".join(self.parts)
        self.parts, self.held = [], 0
        return data


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except OSError as error:
            reason = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
            raise DiskError(reason.get(error.errno or 0, str(error)), bytes(rest)) from error


@dataclass(slots=True)
class Output:
    """One output (stdout or stderr) of one program: its pipe, its log, and what has passed so far."""

    process: str
    log: Path
    #: The reading end, and the end that the program gets (-1 once it is given away).
    pipe: int
    program_end: int
    log_fd: int
    stamps_fd: int
    sink: _Plain | _Packed
    watch: Watch
    #: Where to show it (None: not at all).
    show_on: int | None = None
    prefix: Prefixed | None = None
    is_terminal: bool = False
    capacity: int = PIPE_BYTES
    byte_count: int = 0
    line_count: int = 0
    #: Bytes that passed after the capture had to stop.
    uncaptured_bytes: int = 0
    #: Everything has been taken: the program and whatever inherited its output have closed it.
    ended: bool = False

    def close_program_end(self) -> None:
        """Close this side's copy of what the program writes to, so that its end can be seen."""
        if self.program_end >= 0:
            os.close(self.program_end)
            self.program_end = -1


@dataclass(frozen=True, slots=True)
class Layout:
    """How outputs are captured: through pseudo-terminals or pipes, compressed or not, and what is looked for."""

    folder: Path
    terminal: bool
    packed: bool
    stalls: StallWatch
    markers: tuple[bytes, ...]


def open_output(layout: Layout, process: str, which: str, ready: str | None) -> Output:
    """Make the log, the stamps and the pipe of one output.

    Args:
        layout: what holds for all of the run.
        process: the program's name.
        which: ``stdout`` or ``stderr``.
        ready: a regular expression for the line that tells that the program is ready.

    Raises:
        CaptureError: a file or pipe could not be made.
    """
    log = layout.folder / f"{process}.{which}.log{'.zst' if layout.packed else ''}"
    try:
        log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        mark = stamps.sidecar(log)
        stamps_fd = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        _write_all(stamps_fd, stamps.header(stamps.anchor_now()))
        pipe, program_end, capacity = _terminal() if layout.terminal else _pipe()
    except (OSError, DiskError) as error:
        raise CaptureError(f"{log}: cannot be captured into ({error})") from error
    pattern = re.compile(ready.encode(), re.MULTILINE) if ready else None
    watch = Watch(f"{process}.{which}", layout.stalls, layout.markers, pattern)
    sink = _packed(log_fd) if layout.packed else _Plain(log_fd)
    return Output(
        process,
        log,
        pipe,
        program_end,
        log_fd,
        stamps_fd,
        sink,
        watch,
        capacity=capacity,
        is_terminal=layout.terminal,
    )


def _packed(fd: int) -> _Packed:
    import zstandard

    return _Packed(fd, zstandard.ZstdCompressor(level=3, write_checksum=True))


def _pipe() -> tuple[int, int, int]:
    read, write = os.pipe()
    try:
        capacity = fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:  # above the system's limit for this user
        capacity = fcntl.fcntl(write, fcntl.F_GETPIPE_SZ)
    return read, write, capacity


def _terminal() -> tuple[int, int, int]:
    """Make a pseudo-terminal that passes every byte as it is."""
    master, slave = os.openpty()
    tty.setraw(slave)
    return master, slave, 4096


@dataclass(slots=True)
class Tee:
    """The thread that moves all outputs to their files until every one has ended.

    `tell` is called from the thread with each stall pattern that became complete, and once with None when
    something changed that the owner may wait for (a program became ready, the capture had to stop).
    """

    outputs: Sequence[Output]
    display: Display | None
    tell: Callable[[Hit | None], None]
    #: When any program last printed, monotonic ns.
    last_output_ns: int = field(default_factory=time.monotonic_ns)
    #: Why the capture had to stop before the programs did, if it had to.
    stopped: str = ""
    #: Set if the thread itself died of an error; raised again by `finish`.
    failure: OSError | None = None
    _hurry: bool = False
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to move bytes."""
        self._thread = threading.Thread(target=self._run, name="tracekit-tee", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether any output is still open."""
        return self._thread is not None and self._thread.is_alive()

    def finish(self, timeout_s: float) -> None:
        """Wait for the ends of all outputs; after the timeout take what stands in the pipes and leave.

        Raises:
            CaptureError: reading failed.
        """
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._hurry = True
            self._thread.join()
        for output in self.outputs:
            output.close_program_end()
            for fd in (output.pipe, output.log_fd, output.stamps_fd):
                os.close(fd)
        if self.failure is not None:
            raise CaptureError(f"the programs' output could not be read ({self.failure})") from self.failure

    def _run(self) -> None:
        try:
            self._move()
        except OSError as error:
            self.failure = error
            self.tell(None)

    def _move(self) -> None:
        selector = selectors.DefaultSelector()
        for output in self.outputs:
            selector.register(output.pipe, selectors.EVENT_READ, output)
        packed = any(isinstance(o.sink, _Packed) for o in self.outputs)
        while selector.get_map():
            ready = selector.select(FRAME_S if packed or self._hurry else 0.5)
            much = False
            for key, _ in ready:
                one: Output = key.data
                count = self._pull(one)
                much |= count * _LITTLE > one.capacity
                if not count:
                    selector.unregister(one.pipe)
                    self._end(one)
            if packed:
                self._flush()
            if self._hurry and not ready:
                break
            if not much:
                time.sleep(PAUSE_S)
        for key in list(selector.get_map().values()):  # in a hurry: what still was open
            self._end(key.data)
        selector.close()

    def _pull(self, output: Output) -> int:
        """Move what stands in a pipe; return how much that was, 0 at its end."""
        try:
            data = os.read(output.pipe, _SMALL_READ)
            if len(data) == _SMALL_READ and output.capacity > _SMALL_READ:
                self._take(output, data)
                return _SMALL_READ + self._pull_rest(output)
        except OSError as error:
            if output.is_terminal and error.errno == errno.EIO:  # how a pseudo-terminal ends
                return 0
            raise
        if data:
            self._take(output, data)
        return len(data)

    def _pull_rest(self, output: Output) -> int:
        """Take the rest of a well-filled pipe in one read, if any."""
        waiting = int.from_bytes(fcntl.ioctl(output.pipe, _FIONREAD, b"\0\0\0\0"), "little")
        if not waiting:
            return 0
        data = os.read(output.pipe, waiting)
        self._take(output, data)
        return len(data)

    def _take(self, output: Output, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        self.last_output_ns = now_ns
        if self.stopped:
            output.uncaptured_bytes += len(data)
        else:
            self._store(output, data, now_ns)
        was_ready = output.watch.is_ready
        hits = output.watch.feed(data, output.byte_count - len(data) if not self.stopped else output.byte_count)
        for hit in hits:
            self.tell(hit)
        if output.watch.is_ready and not was_ready:
            self.tell(None)
        if self.display is not None and output.show_on is not None:
            self.display.put(output.show_on, output.prefix.lines(data) if output.prefix else data)

    def _store(self, output: Output, data: bytes, now_ns: int) -> None:
        stamp = stamps.RECORD.pack(output.byte_count, now_ns)
        try:
            _write_all(output.stamps_fd, stamp)
        except DiskError as error:
            output.uncaptured_bytes += len(data)
            self._stop(output, DiskError(str(error), b""))
            return
        output.byte_count += len(data)
        output.line_count += data.count(b"\n")
        try:
            output.sink.write(data)
        except DiskError as error:
            self._stop(output, error)

    def _flush(self) -> None:
        if self.stopped:
            return
        now_ns = time.monotonic_ns()
        for output in self.outputs:
            try:
                output.sink.flush(now_ns)
            except DiskError as error:
                self._stop(output, error)

    def _end(self, output: Output) -> None:
        if output.prefix is not None and self.display is not None and output.show_on is not None:
            self.display.put(output.show_on, output.prefix.rest())
        if not self.stopped:
            try:
                output.sink.finish()
            except DiskError as error:
                self._stop(output, error)
        output.ended = True

    def _stop(self, output: Output, error: DiskError) -> None:
        """Stop capturing every stream, so that all cover the same time; the programs run on."""
        self.stopped = f"{error} ({output.log.name})"
        for one in self.outputs:
            lost = error.lost if one is output else one.sink.drop()
            one.byte_count -= len(lost)
            one.line_count -= lost.count(b"\n")
            one.uncaptured_bytes += len(lost)
        self.tell(None)


_FIONREAD = 0x541B
