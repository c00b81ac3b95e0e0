"""The capture's side of the guard: start it, give it orders, hear what became of the programs."""

import contextlib
import os
import signal as signals
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tracekit.capture import guard
from tracekit.capture.errors import CaptureError
from tracekit.capture.guard import Message

#: How long killing may take: what hangs in the kernel, or belongs to another user, does not die.
_KILL_S = 5.0

#: So many looks in a row must find nothing after the guard was killed: one may miss who changes parents meanwhile.
_LOOKS = 3


@dataclass(slots=True)
class Guard:
    """A running guard. Use as a context manager: leaving it ends the guard and all that it still holds."""

    sock: socket.socket = field(init=False)
    process: subprocess.Popen[bytes] = field(init=False)
    _before: set[int] = field(init=False)

    def __enter__(self) -> "Guard":
        self._before = set(guard.descendants(os.getpid()))
        guard.set_subreaper(on=True)
        self.sock, theirs = socket.socketpair()
        command = [sys.executable, "-I", "-S", guard.__file__, str(theirs.fileno())]
        try:
            self.process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self.sock.close()
            guard.set_subreaper(on=False)
            raise CaptureError(
                f"{sys.executable}: the guard process could not be started ({error.strerror})"
            ) from error
        finally:
            theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._send({"do": "quit"})
        self.sock.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.kill_adopted()
        guard.set_subreaper(on=False)

    def fileno(self) -> int:
        """Return the descriptor to wait on for `receive`."""
        return self.sock.fileno()

    def settle(self, manifest: Path, grace_s: float) -> None:
        """Tell the guard which manifest to complete, and how long programs get, should this process be killed."""
        self._send({"do": "settings", "manifest": str(manifest.absolute()), "grace_s": grace_s})

    def start(
        self,
        name: str,
        path: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        fds: Sequence[int],
        *,
        plain: bool,
    ) -> None:
        """Order a program to be started; `receive` tells whether it was.

        Args:
            name: what it is called in events.
            path: the executable.
            argv: its arguments, the name first.
            env: its whole environment.
            cwd: its working directory.
            fds: stdin, stdout, stderr; then for either output the reading end, the log, the stamps.
            plain: whether the logs are uncompressed, so that the guard can add to them.
        """
        order = {"do": "start", "name": name, "path": path, "argv": list(argv), "env": dict(env), "cwd": cwd}
        self._send(order | {"plain": plain}, fds)

    def signal(self, name: str, number: signals.Signals, *, tree: bool = False) -> None:
        """Signal a program's process group, with `tree` also its descendants outside of that."""
        self._send({"do": "signal", "name": name, "signal": number, "reach": "tree" if tree else "group"})

    def signal_all(self, number: signals.Signals) -> None:
        """Signal everything that was started, and whatever that left behind."""
        self._send({"do": "signal", "signal": number, "reach": "all"})

    def receive(self) -> Message | None:
        """Return the next event, waiting for it; None when the guard is gone."""
        return guard.receive(self.sock)[0]

    def kill_adopted(self) -> None:
        """Kill what fell to this process because the guard was killed (nothing, normally)."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_KILL_S)  # until it is reaped, what it leaves is on its way from it to this process
        deadline = time.monotonic() + _KILL_S
        nothing, looks = 0, _LOOKS if self.process.returncode else 1
        while nothing < looks and time.monotonic() < deadline:
            left = self._adopted()
            nothing = 0 if left else nothing + 1
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signals.SIGKILL)
            time.sleep(0.01)
            for pid in left:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _adopted(self) -> list[int]:
        """Return descendants that the guard had started: new ones, in sessions of their own as all of its are."""
        found = []
        for pid in set(guard.descendants(os.getpid())) - self._before - {self.process.pid}:
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) != os.getsid(0):
                    found.append(pid)
        return found

    def _send(self, message: Message, fds: Sequence[int] = ()) -> None:
        with contextlib.suppress(ConnectionError):  # it is gone: `receive` says so
            guard.send(self.sock, message, fds)
