"""What procfs tells of running processes: the files they map, the ports they listen on."""

import errno
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"


def mapped_files(pid: int) -> set[str]:
    """Return the executables and shared libraries that a process maps at this moment; empty if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_bytes().splitlines()
    except OSError:
        return set()
    found = set()
    for line in lines:
        # address perms offset dev inode path: the path may hold spaces
        parts = line.split(None, 5)
        if len(parts) == 6 and b"x" in parts[1] and parts[5].startswith(b"/"):
            name = os.fsdecode(parts[5])
            if not name.endswith(" (deleted)") and not name.startswith(("/dev/", "/memfd:", "/SYSV")):
                found.add(name)
    return found


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP socket: who has it, if that can be seen."""

    inode: str
    pid: int | None
    command: str


def listener(port: int, own: Iterable[int]) -> Listener | None:
    """Return who listens on a TCP port of this machine, looking among `own` processes first; None if nobody.

    Reads ``/proc/net/tcp``: no connection is made. The owner is known for processes of this user only.
    """
    inodes = _listening(port)
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    own = list(own)
    others = (int(e.name) for e in os.scandir("/proc") if e.name.isdigit() and int(e.name) not in own)
    for pid in (*own, *others):
        if held := _sockets(pid) & wanted.keys():
            return Listener(wanted[held.pop()], pid, command(pid))
    return Listener(inodes[0], None, "another user's process")


def listens(port: int) -> bool:
    """Return whether anything on this machine listens on a TCP port."""
    return bool(_listening(port))


def _listening(port: int) -> list[str]:
    found = []
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            parts = line.split()
            if parts[3] == _LISTEN and int(parts[1].rpartition(":")[2], 16) == port:
                found.append(parts[9])
    return found


def _sockets(pid: int) -> set[str]:
    found = set()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                found.add(os.readlink(entry.path))  # noqa: PTH115 -- thousands of them
            except OSError:
                continue
    except OSError:
        return set()
    return found


def command(pid: int) -> str:
    """Return a process's command name, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def is_taken(host: str, port: int) -> bool:
    """Return whether a TCP port cannot be bound here; makes no connection.

    SO_REUSEADDR as servers set it: what an ended server leaves in TIME_WAIT does not count.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, struct.pack("i", 1))
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE  # an address that is not of this machine is no answer
    return False


def accepts(address: str, timeout_s: float) -> bool:
    """Return whether HOST:PORT accepts a connection: makes one, if it does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except OSError:
        return False
    return True
