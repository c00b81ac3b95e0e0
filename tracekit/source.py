"""Where bytes come from: files, globs, directories, standard input, ``.gz`` and ``.zst``, as numbered lines.

One stream per file. A physical line ends at ``\\n``, at ``\\r`` (progress bars) or at ``\\r\\n``; lines are counted
from 1. Bytes are read in blocks and cut at line ends here, because a log may hold anything: invalid UTF-8 (read
with replacement characters), NUL bytes, one line of many megabytes, a missing last line end.
"""

import atexit
import gzip
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import zstandard

from tracekit.captured import missing_text, timed_run
from tracekit.errors import NothingRecognisedError, UsageError
from tracekit.stamps import READ_BYTES, SUFFIX, Stamps, read_stamps

#: Bytes read at once. Measured: 1 to 4 MiB are equally fast; larger blocks only take memory.
BLOCK_BYTES = 2 << 20

#: A line longer than this is cut into several: it is no log line, and memory is finite.
LINE_BYTES = 64 << 20

#: Files that a directory is searched for.
LOG_SUFFIXES = (".log", ".txt", ".out", ".err", ".jsonl")
PACKED_SUFFIXES = (".gz", ".zst")

#: What a capture appends to a process's name for its two outputs.
_OUTPUT_NAMES = (".stdout", ".stderr")

STDIN = "-"


@dataclass(frozen=True, slots=True)
class Stream:
    """One log: its path as given (``-`` is standard input) and the display name of the process behind it."""

    path: str
    worker: str
    #: Where the bytes are, when not at `path`: what came through a pipe is kept, so that it can be read twice.
    file: str = ""

    @property
    def parquet(self) -> bool:
        """Whether this is a frame that `tracekit events` wrote, not a log."""
        return self.path.endswith(".parquet")


@dataclass(slots=True)
class Ledger:
    """What reading one stream came to: its size, and what went wrong on the way (empty if nothing).

    `unended` is the end of a last line without a line end (at most 512 bytes): what is written last may be cut.
    """

    bytes: int = 0
    broken: str = ""
    #: Why lines have no time of arrival, or a wrong one, although stamps lie beside the log.
    unstamped: str = ""
    unended: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines: their bytes, where every line ends with one ``\\n``; and when each arrived, if that was stamped."""

    data: bytes
    arrival_ns: npt.NDArray[np.int64] | None = None

    def lines(self, first: int) -> pl.DataFrame:
        """Return all lines: ``line`` UInt32 (counted from `first`), ``text`` String (without its line end)."""
        text = pl.Series([self.data[:-1].decode("utf-8", "replace")]).str.split("\n").explode()
        return self._frame(np.arange(first, first + len(text)), text)

    def some(
        self,
        first: int,
        rows: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
    ) -> pl.DataFrame:
        """Return some lines, as `lines` does: their indices in the block, and where all lines start and end."""
        places = zip(starts[rows].tolist(), ends[rows].tolist(), strict=True)
        texts = [self.data[start:end].decode("utf-8", "replace") for start, end in places]
        return self._frame(rows + first, pl.Series(texts, dtype=pl.String))

    @staticmethod
    def _frame(numbers: npt.NDArray[np.int64], text: pl.Series) -> pl.DataFrame:
        return pl.DataFrame([pl.Series("line", numbers.astype(np.uint32)), text.alias("text")])


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(slots=True)
class Source:
    """The numbered lines of one stream, as polars frames, read once from front to back."""

    stream: Stream
    ledger: Ledger = field(default_factory=Ledger)
    #: Called with the number of (packed) bytes read so far, for a progress bar.
    progress: Callable[[int], None] | None = None

    def blocks(self) -> Iterator["Block"]:
        """Yield the stream in blocks of whole lines.

        Raises:
            UsageError: the file cannot be opened.
        """
        stamps = self._stamps()
        offset = 0
        for raw in self._cut():
            arrival = None
            if stamps is not None:
                try:
                    arrival = stamps.arrival_ns((_line_ends(raw) + offset).astype(np.uint64))
                except UsageError as error:
                    self.ledger.unstamped = f"{_sidecar(self.stream.path)}: {error}"
                    stamps = None
                offset += len(raw)
            data = raw
            if b"\r" in data:
                data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            if not data.endswith(b"\n"):
                self.ledger.unended = data[data.rfind(b"\n") + 1 :][-512:].decode("utf-8", "replace")
                data += b"\n"
            else:
                self.ledger.unended = ""
            yield Block(data, arrival)
        if (
            stamps is not None
            and stamps.byte_offset.size
            and offset > (end := int(stamps.byte_offset[-1]) + READ_BYTES)
        ):
            self.ledger.unstamped = f"{_sidecar(self.stream.path)}: is cut, nothing is stamped from byte {end:,} on"

    def _stamps(self) -> Stamps | None:
        """Return the arrival stamps that a capture laid beside the log, if there are any that can be read."""
        beside = _sidecar(self.stream.path)
        try:
            return read_stamps(beside) if beside.exists() else None
        except UsageError as error:
            self.ledger.unstamped = str(error)
            return None

    def _cut(self) -> Iterator[bytes]:
        """Yield blocks of bytes that end at a line end (the last may not)."""
        kept: list[bytes] = []
        for data in self._read():
            end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
            if end == 0 and len(kept) * BLOCK_BYTES < LINE_BYTES:
                kept.append(data)
                continue
            end = end or len(data)
            yield b"".join((*kept, memoryview(data)[:end]))
            kept = [data[end:]] if end < len(data) else []
        if rest := b"".join(kept):
            yield rest

    def _read(self) -> Iterator[bytes]:
        """Yield raw blocks; a damaged compressed file ends the stream and is noted in the ledger."""
        with _open(self.stream.path, self.stream.file) as (packed, plain):
            while True:
                try:
                    data = plain.read(BLOCK_BYTES)
                except (EOFError, OSError, zlib.error, zstandard.ZstdError) as error:
                    self.ledger.broken = f"{type(error).__name__}: {error}"
                    return
                if not data:
                    return
                self.ledger.bytes += len(data)
                if self.progress is not None:
                    self.progress(_position(packed))
                yield data


def _sidecar(path: str) -> Path:
    """Return where a capture lays the arrival stamps of a log."""
    for packed in PACKED_SUFFIXES:
        path = path.removesuffix(packed)
    return Path(path + SUFFIX)


def _line_ends(raw: bytes) -> npt.NDArray[np.int64]:
    """Return the place of each line's last byte."""
    octets = np.frombuffer(raw, np.uint8)
    ends = octets == ord("\n")
    if b"\r" in raw:
        ends |= (octets == ord("\r")) & (np.append(octets[1:], 0) != ord("\n"))
    ends[-1] = True
    return np.flatnonzero(ends)


@contextmanager
def _open(path: str, kept: str) -> Iterator[tuple[BinaryIO, _Readable]]:
    """Give the file (for its position) and what its plain bytes are read from."""
    with ExitStack() as stack:
        try:
            file = cast(BinaryIO, stack.enter_context(Path(kept or path).open("rb", buffering=0)))
        except OSError as error:
            raise UsageError(f"{path}: cannot be opened ({error.strerror}); check the path") from error
        if path.endswith(".gz"):
            yield file, _Drained(gzip.GzipFile(fileobj=file))
        elif path.endswith(".zst"):
            yield file, _Frames(file)
        else:
            yield file, file


@dataclass(slots=True)
class _Drained:
    """A gzip file that hands out all it could unpack before it reports damage."""

    file: gzip.GzipFile

    def read(self, size: int, /) -> bytes:
        return self.file.read1(size)


@dataclass(slots=True)
class _Frames:
    """A zstd file, frame after frame, that tells when the last one is cut (the library's own reader does not)."""

    file: BinaryIO
    frame: "zstandard.ZstdDecompressionObj | None" = None
    rest: bytes = b""

    def read(self, size: int, /) -> bytes:
        while True:
            packed = self.rest or self.file.read(size // 8)
            self.rest = b""
            if not packed:
                if self.frame is not None:
                    raise EOFError("the file ends within a frame")
                return b""
            if self.frame is None:
                self.frame = zstandard.ZstdDecompressor().decompressobj()
            plain = self.frame.decompress(packed)
            if self.frame.eof:
                self.rest, self.frame = self.frame.unused_data, None
            if plain:
                return plain


def _position(file: BinaryIO) -> int:
    try:
        return file.tell()
    except OSError:  # a pipe has no position
        return 0


def streams(paths: Sequence[str | Path], workers: Sequence[str] = ()) -> list[Stream]:
    """Resolve files, globs, directories and ``-`` to streams, in the order given, each once.

    Args:
        paths: what the user named. A directory means the logs in it (not below it); that of a pair, its timed run.
        workers: ``NAME=PATH`` overrides of a worker's display name; PATH is the file as given or its file name.

    Raises:
        UsageError: a path does not exist, an override names no stream.
        NothingRecognisedError: a directory holds no log.
    """
    found: dict[str, None] = {}
    real: set[Path] = set()
    for given in map(str, paths):
        for path in _resolve(given):
            place = Path(path).resolve()
            if path == STDIN or place not in real:  # one log under two names is one log
                found[path] = None
                real.add(place)
    if not found:
        raise UsageError("no log was named; give files, globs, directories, or - for standard input")
    names = _overrides(workers, list(found))
    return [Stream(path, names.get(path, worker_name(path)), _keep(path)) for path in found]


def shared_names(streams: Sequence[Stream]) -> dict[str, list[str]]:
    """Return the names that logs of several directories bear, with these logs: hardly of one process.

    Logs of one name in one directory are: a capture keeps a process's two outputs so.
    """
    found: dict[str, list[str]] = {}
    for stream in streams:
        if not stream.parquet:  # names its workers itself
            found.setdefault(stream.worker, []).append(stream.path)
    return {name: paths for name, paths in found.items() if len({Path(p).parent for p in paths}) > 1}


def plain_text(path: str | Path) -> str:
    """Return the whole text of a small file; .gz and .zst are unpacked.

    Raises:
        UsageError: it cannot be read, is damaged or no UTF-8.
    """
    reading = Source(Stream(str(path), ""))
    try:
        text = b"".join(reading._read()).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: cannot be read (no UTF-8)") from error
    if reading.ledger.broken:
        raise UsageError(f"{path}: cannot be read ({reading.ledger.broken})")
    return text


def size(stream: Stream) -> int:
    """Return the stream's size on disk in bytes."""
    return Path(stream.file or stream.path).stat().st_size


def worker_name(path: str) -> str:
    """Return the display name of the process behind a log: the file's stem.

    >>> worker_name("logs/rpc-b70-2.log"), worker_name("run/rpc-b70-2.stderr.log.zst"), worker_name("-")
    ('rpc-b70-2', 'rpc-b70-2', 'stdin')
    """
    if path == STDIN:
        return "stdin"
    name = Path(path).name
    for suffix in (*PACKED_SUFFIXES, *LOG_SUFFIXES, *_OUTPUT_NAMES):
        if name != suffix:
            name = name.removesuffix(suffix)
    return name


def _keep(path: str) -> str:
    """Copy what comes through a pipe to a temporary file (removed at exit) and return its name; else nothing."""
    if path != STDIN and not Path(path).is_fifo():
        return ""
    with tempfile.NamedTemporaryFile(prefix="tracekit-", delete=False) as copy:
        atexit.register(Path(copy.name).unlink, missing_ok=True)
        if path == STDIN:
            shutil.copyfileobj(sys.stdin.buffer, copy)
        else:
            with Path(path).open("rb") as pipe:
                shutil.copyfileobj(pipe, copy)
    return copy.name


def _resolve(path: str) -> list[str]:
    if path == STDIN:
        return [path]
    here = Path(path)
    try:
        if here.is_dir():
            return _logs_in(here)
        if here.exists():
            return [path]
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if any(c in path for c in "*?["):
        base = Path(here.anchor) if here.is_absolute() else Path()
        pattern = str(here.relative_to(here.anchor)) if here.is_absolute() else path
        if matches := sorted(str(p) for p in base.glob(pattern) if p.is_file()):
            return matches
        raise UsageError(f"{path}: no file matches this pattern")
    raise UsageError(f"{path}: no such file; check the path, or quote a glob so that the shell leaves it alone")


def _logs_in(folder: Path) -> list[str]:
    def is_log(file: Path) -> bool:
        name = file.name
        for packed in PACKED_SUFFIXES:
            name = name.removesuffix(packed)
        return file.is_file() and (name.endswith(LOG_SUFFIXES) or name.endswith(".parquet"))

    found = sorted(str(file) for file in folder.iterdir() if is_log(file))
    if not found and (timed := timed_run(folder)):
        return _logs_in(timed)
    if not found:
        wanted = ", ".join(LOG_SUFFIXES)
        if gone := missing_text(folder):
            raise NothingRecognisedError(f"{folder}: no log in this directory; {gone}")
        raise NothingRecognisedError(f"{folder}: no log in this directory (looked for {wanted}, also with .gz or .zst)")
    return found


def _overrides(workers: Sequence[str], paths: Sequence[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for item in workers:
        name, equals, path = item.partition("=")
        if not (name and equals and path):
            raise UsageError(f"--worker {item}: expected NAME=PATH")
        hits = [p for p in paths if p == path or Path(p).name == path]
        if not hits:
            raise UsageError(f"--worker {item}: {path} is none of the logs given")
        if len(hits) > 1:
            raise UsageError(f"--worker {item}: {path} means several logs ({', '.join(hits)}); give the whole path")
        if hits[0] in names or name in names.values():
            raise UsageError(f"--worker {item}: this name or this log was already given; each log has one name")
        names[hits[0]] = name
    return names
