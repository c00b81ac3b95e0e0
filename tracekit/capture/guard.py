"""The guard: a small process that is the parent of everything a capture starts, so that nothing is orphaned.

It is a *subreaper*: whatever its children leave behind, however often it forks and whatever session it opens,
becomes the guard's child. When the capture that commands it goes away (``kill -9``), the guard sees the end of
their socket, keeps what still stands in the pipes, and stops all its descendants. Should the guard be killed
first, its children die by PR_SET_PDEATHSIG and the rest falls to the capture, which is a subreaper too.

Run as a script by a bare interpreter (``python -I -S guard.py FD``): standard library only.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Message = dict[str, Any]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_LENGTH = struct.Struct("<I")
_STAMP = struct.Struct("<Qq")

#: Descriptors that come with a start: stdin, stdout, stderr of the program, then for each of its two outputs
#: what the guard must keep should the capture die: the reading end, the log, the stamps.
START_FDS = 9


def set_subreaper(*, on: bool) -> None:
    """Make this process the parent of its descendants' orphans, or end that."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(on))


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"prctl({option})")


def descendants(pid: int) -> list[int]:
    """Return all living descendants of a process, parents before their children; zombies are left out."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (parent := _parent(entry.name)):
            children.setdefault(parent, []).append(int(entry.name))
    found = list(children.get(pid, ()))
    for one in found:  # grows while it is walked
        found.extend(children.get(one, ()))
    return found


def _parent(pid: str) -> int:
    """Return a process's parent, 0 if it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 -- called once per process of the machine
            state, parent = file.read().rpartition(b") ")[2].split(None, 2)[:2]
    except OSError:
        return 0
    return 0 if state == b"Z" else int(parent)


def send(sock: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send one message and the descriptors that belong to it."""
    payload = json.dumps(message).encode()
    if fds:
        socket.send_fds(sock, [_LENGTH.pack(len(payload))], list(fds))
        sock.sendall(payload)
    else:
        sock.sendall(_LENGTH.pack(len(payload)) + payload)


def receive(sock: socket.socket) -> tuple[Message | None, list[int]]:
    """Wait for one message; None when the other side is gone."""
    try:
        head, fds, _, _ = socket.recv_fds(sock, _LENGTH.size, START_FDS)
        for fd in fds:  # recv_fds passes no MSG_CMSG_CLOEXEC on: each program would hold the pipes of all
            os.set_inheritable(fd, False)  # noqa: FBT003
        if len(head) < _LENGTH.size:
            return None, fds
        payload = bytearray()
        (length,) = _LENGTH.unpack(head)
        while len(payload) < length:
            part = sock.recv(length - len(payload))
            if not part:
                return None, fds
            payload += part
    except ConnectionError:
        return None, []
    return json.loads(payload), list(fds)


@dataclass(slots=True)
class _Salvage:
    """One output of a program, as the guard must keep it if the capture dies."""

    pipe: int
    log: int
    stamps: int
    #: Compressed logs are left as they are: what still stands in the pipe is counted and lost.
    plain: bool
    lost: int = 0

    def pull(self) -> bool:
        """Move what stands in the pipe to the log; False at its end."""
        try:
            data = os.read(self.pipe, 1 << 16)
        except OSError:  # a pseudo-terminal whose other side is closed
            return False
        try:
            if data and self.plain:
                os.write(self.stamps, _STAMP.pack(os.lseek(self.log, 0, os.SEEK_END), time.monotonic_ns()))
                done = os.write(self.log, data)
                self.lost += len(data) - done
            else:
                self.lost += len(data)
        except OSError:  # the disk is full: go on emptying the pipe
            self.lost += len(data)
        return bool(data)


class Guard:
    """Starts, signals and reaps programs on orders that come through a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.names: dict[int, str] = {}
        self.salvage: list[_Salvage] = []
        self.lost = 0
        self.manifest = ""
        self.grace_s = 5.0
        self.statuses: dict[str, int] = {}
        self.wake, wake_write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Obey until told to quit, or until the capture is gone: then stop everything."""
        while True:
            ready, _, _ = select.select([self.sock.fileno(), self.wake], [], [])
            if self.wake in ready:
                self._drain_wake()
                self._reap()
            if self.sock.fileno() in ready:
                message, fds = receive(self.sock)
                if message is None:
                    self._take_over()
                    return
                if message["do"] == "quit":
                    return
                self._obey(message, fds)

    def _obey(self, message: Message, fds: list[int]) -> None:
        if message["do"] == "start":
            self._start(message, fds)
        elif message["do"] == "signal":
            self._signal(message)
        elif message["do"] == "settings":
            self.manifest, self.grace_s = message["manifest"], message["grace_s"]

    def _start(self, order: Message, fds: list[int]) -> None:
        name = order["name"]
        pid, error = _spawn(order, fds[:3])
        for fd in fds[:3]:
            os.close(fd)
        for pipe, log, stamps in zip(fds[3::3], fds[4::3], fds[5::3], strict=True):
            self.salvage.append(_Salvage(pipe, log, stamps, plain=order["plain"]))
        if error:
            os.waitpid(pid, 0)
            self._tell({"event": "refused", "name": name, "errno": error})
            return
        self.names[pid] = name
        self._tell({"event": "started", "name": name, "pid": pid, "mono_ns": time.monotonic_ns()})

    def _signal(self, order: Message) -> None:
        number = order["signal"]
        if order["reach"] == "all":
            self._signal_all(number)
            return
        for pid, name in self.names.items():
            if name == order["name"] and name not in self.statuses:  # a reaped pid may be another's by now
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, number)
                if order["reach"] == "tree":
                    _kill(descendants(pid), number)

    def _signal_all(self, number: int) -> None:
        _kill(descendants(os.getpid()), number)

    def _reap(self) -> bool:
        """Collect the dead and tell of the known ones; return whether anything still lives."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._tell({"event": "idle"})
                return False
            if not pid:
                return True
            if name := self.names.get(pid):
                code = os.waitstatus_to_exitcode(status)
                self.statuses[name] = code
                self._tell(
                    {
                        "event": "exited",
                        "name": name,
                        "status": code,
                        "mono_ns": time.monotonic_ns(),
                        "user_s": usage.ru_utime,
                        "system_s": usage.ru_stime,
                        "max_rss_bytes": usage.ru_maxrss * 1024,
                    }
                )

    def _take_over(self) -> None:
        """The capture is gone: stop everything, keeping what the programs still print."""
        self._signal_all(signal.SIGTERM)
        deadline = time.monotonic() + self.grace_s
        while self._reap():
            if time.monotonic() > deadline:
                self._signal_all(signal.SIGKILL)
            self._pull(0.05)
            self._drain_wake()
        while self._pull(0):
            pass
        if self.manifest:
            self._close_manifest()

    def _pull(self, timeout_s: float) -> bool:
        """Empty the pipes once; return whether any held something."""
        poll = select.poll()  # select() takes no descriptor above 1023
        by_fd = {s.pipe: s for s in self.salvage}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        ready = [by_fd[fd] for fd, _ in poll.poll(timeout_s * 1000)]
        ended = [s for s in ready if not s.pull()]
        self.salvage = [s for s in self.salvage if s not in ended]
        self.lost += sum(s.lost for s in ended)
        if not by_fd:
            time.sleep(timeout_s)
        return len(ready) > len(ended)

    def _close_manifest(self) -> None:
        """Write into the manifest how it ended, since nobody else can."""
        path = Path(self.manifest)
        path.with_name(".reserve").unlink(missing_ok=True)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            content["outcome"] = {
                "name": "interrupted",
                "evidence": "tracekit itself was killed; the guard stopped the programs and kept what was printed",
                "status": 137,
                "notes": [],
            }
            content["ended"] = {"wall_ns": time.time_ns(), "mono_ns": time.monotonic_ns()}
            self._tell_losses(content)
            for process in content["processes"]:
                process["status"] = self.statuses.get(process["name"], process.get("status"))
                for log in process["logs"]:
                    if log["file"].endswith(".log"):
                        log["bytes"], log["lines"] = _size(path.with_name(log["file"]))
            fresh = path.with_name("manifest.json.part")
            fresh.write_text(json.dumps(content, indent=1), encoding="utf-8")
            fresh.replace(path)
        except (OSError, ValueError) as error:
            sys.stderr.write(f"tracekit guard: {path}: could not be completed ({error})\n")

    def _tell_losses(self, content: Message) -> None:
        lost = self.lost + sum(s.lost for s in self.salvage)
        reasons = [f"{lost} bytes that stood in pipes could not be kept"] if lost else []
        if content["capture"]["zstd"]:
            reasons.append("what was in no whole frame yet is lost (0.25 s or 1 MiB at most)")
        if reasons:
            content["capture"]["complete"] = False
            content["capture"]["stopped"] = "tracekit was killed: " + "; ".join(reasons)

    def _tell(self, message: Message) -> None:
        with contextlib.suppress(OSError):  # the capture is gone: the socket's end is seen in serve()
            send(self.sock, message)

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wake, 4096):
                pass


def _size(path: Path) -> tuple[int, int]:
    """Return the bytes and line ends of a file."""
    size = lines = 0
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            size += len(data)
            lines += data.count(b"\n")
    return size, lines


def _kill(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _spawn(order: Message, fds: Sequence[int]) -> tuple[int, int]:
    """Fork and execute; return the pid and the errno of a refusal (0: it runs)."""
    read, write = os.pipe()
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        number = 127
        try:
            _become(order, fds, guard)
        except OSError as error:
            number = error.errno or number
        os.write(write, str(number).encode())
        os._exit(127)
    os.close(write)
    answer = b"".join(_until_end(read))
    os.close(read)
    return pid, int(answer or 0)


def _become(order: Message, fds: Sequence[int], guard: int) -> None:
    """In the child: a session of its own, the outputs, and then the program. Does not return."""
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:  # it died before the line above
        os._exit(127)
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
    signal.set_wakeup_fd(-1)
    # Python ignores SIGPIPE and SIGXFSZ; ignored signals would stay so in the program.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.chdir(order["cwd"])
    os.execve(order["path"], order["argv"], order["env"])


def _until_end(fd: int) -> Iterator[bytes]:
    while data := os.read(fd, 256):
        yield data


def main() -> None:
    """Serve the socket whose descriptor is the argument."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    set_subreaper(on=True)
    Guard(sock).serve()


if __name__ == "__main__":
    main()
