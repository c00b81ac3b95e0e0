"""Arrival stamps: the binary sidecar ``<name>.log.stamps`` that a capture keeps beside each log.

One record per read of the program's output: where in the log the bytes of that read begin, and when it returned.
The layout, all little-endian:

==========  ======  =============================================================================
bytes       type    meaning
==========  ======  =============================================================================
0-7         8s      ``TKSTAMPS``
8-11        u32     version, 1
12-15       u32     length of this header in bytes, 64: records begin there
16-23       i64     wall clock (CLOCK_REALTIME) at the anchor, ns since 1970
24-31       i64     monotonic clock (CLOCK_MONOTONIC) at the anchor, ns
32-39       i64     how far the two may be apart: the time that reading both took, ns
40-63       -       zero
64-...      u64,i64 one record of 16 bytes per read: offset of its first byte in the plain log, mono ns
==========  ======  =============================================================================

Offsets rise strictly and count plain bytes, also where the log is compressed. Times never fall. A record is
written before its bytes, so the last may point at the very end of a log whose capture was killed; a last record
of fewer than 16 bytes is left out.
"""

import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAGIC = b"TKSTAMPS"
VERSION = 1
SUFFIX = ".stamps"
#: No read of a program's output brings more than this: what a pipe holds.
READ_BYTES = 1 << 20

_HEADER = struct.Struct("<8sIIqqq24x")
RECORD = struct.Struct("<Qq")


@dataclass(frozen=True, slots=True)
class Anchor:
    """One moment on both clocks: adds the time of day to monotonic stamps."""

    wall_ns: int
    mono_ns: int
    #: The two clocks were read within this time of one another.
    error_ns: int

    def wall(self, mono_ns: int) -> int:
        """Return the wall clock in ns since 1970 at a monotonic time.

        >>> Anchor(wall_ns=1_000, mono_ns=10, error_ns=0).wall(15)
        1005
        """
        return self.wall_ns + mono_ns - self.mono_ns


@dataclass(frozen=True, slots=True)
class Stamps:
    """The stamps of one log.

    `byte_offset` (uint64) and `mono_ns` (int64) have one entry per read of the program's output.
    """

    byte_offset: "NDArray[np.uint64]"
    mono_ns: "NDArray[np.int64]"
    anchor: Anchor

    def arrival_ns(self, offsets: "NDArray[np.uint64]") -> "NDArray[np.int64]":
        """Return when the bytes at these offsets arrived, monotonic ns.

        For a line take the offset of its *last* byte: the line was whole when that byte had come.

        Raises:
            UsageError: there is no stamp at all, or an offset lies before the first.
        """
        import numpy as np

        index = np.searchsorted(self.byte_offset, offsets, side="right") - 1
        if index.size and (not self.byte_offset.size or index.min() < 0):
            raise UsageError("the stamps do not cover the log: does this .stamps file belong to it?")
        return self.mono_ns[index]


def anchor_now() -> Anchor:
    """Read both clocks, as close together as a few tries get them."""
    best = None
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best.error_ns:
            best = Anchor(wall, (before + after) // 2, after - before)
    assert best is not None
    return best


def header(anchor: Anchor) -> bytes:
    """Return the 64 bytes that open a file of stamps."""
    return _HEADER.pack(MAGIC, VERSION, _HEADER.size, anchor.wall_ns, anchor.mono_ns, anchor.error_ns)


def sidecar(log: str | Path) -> Path:
    """Return the path of a log's stamps, whether or not it exists.

    >>> sidecar("cap/rpc-0.stderr.log").name, sidecar("cap/rpc-0.stderr.log.zst").name
    ('rpc-0.stderr.log.stamps', 'rpc-0.stderr.log.stamps')
    """
    log = Path(log)
    plain = log.name.removesuffix(".zst").removesuffix(".gz")
    return log.with_name(plain + SUFFIX)


def read_stamps(path: str | Path) -> Stamps:
    """Read a file of stamps.

    Raises:
        UsageError: the file cannot be read, is none of stamps, or is of a later version.
    """
    import numpy as np

    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if len(data) < _HEADER.size or not data.startswith(MAGIC):
        raise UsageError(f"{path}: is no file of arrival stamps (it does not begin with {MAGIC.decode()})")
    _, version, start, wall_ns, mono_ns, error_ns = _HEADER.unpack_from(data)
    if version != VERSION:
        raise UsageError(f"{path}: stamps of version {version}; this tracekit reads version {VERSION}")
    count = (len(data) - start) // RECORD.size
    rows = np.frombuffer(data, np.dtype([("byte_offset", "<u8"), ("mono_ns", "<i8")]), count, start)
    return Stamps(rows["byte_offset"].copy(), rows["mono_ns"].copy(), Anchor(wall_ns, mono_ns, error_ns))
