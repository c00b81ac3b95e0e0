"""What a file is that was given as a log and holds no record: the few mistakes that are easily told."""

import zlib
from pathlib import Path

#: So much of a file tells what it is.
FRONT_BYTES = 1 << 16

_UTF16 = (b"\xff\xfe", b"\xfe\xff")

#: How tables of tracekit's own begin, as CSV (the columns) and as JSON.
_TABLES = (b"family,clock,", b"dialect,stream,line,", b'{"schema": 1, ', b'{"family": ')


def unlike_a_log(path: str | Path) -> str:
    """Return what a file is instead of a log and what to do, as the end of a sentence; empty if that is not known.

    Raises:
        OSError: it cannot be read.
    """
    name = str(path)
    with Path(path).open("rb") as file:
        front = file.read(FRONT_BYTES)
    if name.endswith(".gz") and front and not front.startswith(b"\x1f\x8b"):
        return "it is not packed, though its name ends in .gz: rename it"
    if name.endswith(".zst") and front and not front.startswith(b"\x28\xb5\x2f\xfd"):
        return "it is not packed, though its name ends in .zst: rename it"
    if name.endswith(".gz"):
        front = _unpacked(front)
    if front.startswith(_UTF16) or _every_second_is_zero(front):
        return "it is UTF-16, as PowerShell's > writes: convert it, iconv -f UTF-16 -t UTF-8 OLD > NEW"
    if front.startswith(_TABLES):
        return "it is a table that tracekit wrote: give the log, or a frame of `tracekit events -o FILE.parquet`"
    if is_trace(front):
        return "it is a trace: look at it with `tracekit open`"
    return ""


def is_trace(front: bytes) -> bool:
    """Whether a file that begins so is a trace that Perfetto opens: its own packets, Chrome's JSON, either in gzip."""
    if front.startswith(b"\x1f\x8b"):
        front = _unpacked(front)
    return _is_json_trace(front) or _is_perfetto(front)


def _is_json_trace(front: bytes) -> bool:
    return front.lstrip()[:1] in (b"{", b"[") and (b'"traceEvents"' in front or b'"ph"' in front)


def _is_perfetto(front: bytes) -> bool:
    """Whether it begins with two packets, or is one: field 1, a length, and so many bytes that open with a tag."""
    at = 0
    for _ in range(2):
        if front[at : at + 1] != b"\x0a":
            return False
        at, size, shift = at + 1, 0, 0
        while at < len(front):
            octet = front[at]
            size |= (octet & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if octet < 0x80:
                break
        at += size
        if at >= len(front):
            return bool(size) and (at == len(front) or len(front) == FRONT_BYTES)
    return True


def _every_second_is_zero(front: bytes) -> bool:
    whole = front[: len(front) // 2 * 2]
    return len(whole) > 64 and (not any(whole[1::2]) or not any(whole[::2])) and any(whole)


def _unpacked(front: bytes) -> bytes:
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(front, FRONT_BYTES)
    except zlib.error:
        return b""
