"""The manifest of a capture, ``manifest.json``: what was run, with what, where, and how it ended.

The fields of the classes here are the keys of the file; ``docs/capture.md`` tells their meaning. Times are ns:
``wall_ns`` since 1970, ``mono_ns`` of the monotonic clock that the arrival stamps use. What is not known is null.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from tracekit.errors import UsageError

FILE = "manifest.json"
#: Beside the two directories of a pair, ``clean`` and ``timed``: how the runs went.
PAIR_FILE = "pair.json"
SCHEMA = "tracekit-capture"
VERSION = 1

#: How a run can end.
OUTCOMES = ("ok", "failed", "stalled", "blocked", "interrupted")


@dataclass(slots=True)
class Moment:
    """A time on both clocks."""

    wall_ns: int
    mono_ns: int


@dataclass(slots=True)
class Outcome:
    """How the run ended: one of `OUTCOMES`, why in one sentence, the exit status of `tracekit run`, remarks."""

    name: str
    evidence: str
    status: int
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Log:
    """One captured output of a process."""

    file: str
    stamps: str
    stream: str
    #: Plain bytes and line ends in the log; known at the end only.
    bytes: int | None = None
    lines: int | None = None
    #: Occurrences of the presets' markers; not known if tracekit was killed.
    timing_lines: int | None = None
    #: Bytes that passed after the capture had to stop (a full disk).
    uncaptured_bytes: int = 0


@dataclass(slots=True)
class Process:
    """One program of the run."""

    name: str
    argv: list[str]
    cwd: str
    executable: str
    #: Variables of the allow-list and those that were set for this run; secrets are withheld.
    env: dict[str, str]
    unset: list[str]
    #: Whether its environment switches timing on.
    timed: bool
    index: int | None = None
    pid: int | None = None
    started_mono_ns: int | None = None
    ready_mono_ns: int | None = None
    ended_mono_ns: int | None = None
    #: Exit status; minus the signal's number if one ended it.
    status: int | None = None
    #: The last signal that tracekit sent it.
    stopped_with: str | None = None
    user_s: float | None = None
    system_s: float | None = None
    max_rss_bytes: int | None = None
    logs: list[Log] = field(default_factory=list)
    #: Commit of the source tree that the executable lies in, `+changes` if tracked files differ from it.
    git_commit: str | None = None
    #: Paths of the executables and libraries that it and its children mapped; described in `binaries`.
    mapped: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Capture:
    """How the capture itself was made, and whether it is whole."""

    #: False when it had to stop before the programs did; `stopped` says why.
    complete: bool = True
    stopped: str | None = None
    tty: bool = False
    zstd: bool = False
    stall_after_s: float | None = None
    grace_s: float = 0.0
    sample_s: float | None = None
    #: Bytes that were captured but not shown, because the terminal was too slow.
    not_shown_bytes: int = 0


@dataclass(slots=True)
class Manifest:
    """The whole file."""

    tracekit: str
    name: str
    presets: list[str]
    #: Whether any process timed itself: its throughput is then diagnostic.
    timed: bool
    topology: str | None
    end: str
    command: list[str]
    cwd: str
    started: Moment
    ended: Moment | None
    #: Null while the run is on.
    outcome: Outcome | None
    capture: Capture
    processes: list[Process]
    host: dict[str, Any]
    #: path, size, build_id, sha256, compiler of every mapped file; `error` where it could not be read.
    binaries: list[dict[str, Any]] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)
    #: `clean` or `timed` in a pair.
    role: str | None = None
    schema: str = SCHEMA
    version: int = VERSION

    @property
    def workers(self) -> dict[str, str]:
        """Log file to worker name, for every log of the capture."""
        return {log.file: process.name for process in self.processes for log in process.logs}

    @property
    def timing_lines(self) -> int:
        """Timing lines of all logs, as far as they were counted."""
        return sum(log.timing_lines or 0 for process in self.processes for log in process.logs)

    @property
    def complete(self) -> bool:
        """Whether the run ended by itself and all that it printed is there."""
        return self.outcome is not None and self.outcome.name == "ok" and self.capture.complete


def load(folder: str | Path) -> Manifest | None:
    """Return the manifest of a capture directory, or None if the directory has none.

    Keys that this version does not know are let through unread.

    Raises:
        UsageError: the file is damaged, no manifest, or of a later version.
    """
    path = Path(folder) / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise UsageError(f'{path}: is no manifest of a capture (no "schema": "{SCHEMA}")')
    if content.get("version") != VERSION:
        raise UsageError(f"{path}: a manifest of version {content.get('version')}; this tracekit reads {VERSION}")
    try:
        built = _build(Manifest, content, "")
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
    assert isinstance(built, Manifest)
    return built


def save(manifest: Manifest, folder: Path) -> None:
    """Write the manifest, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    part = folder / f"{FILE}.part"
    with part.open("w", encoding="utf-8") as file:
        json.dump(asdict(manifest), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    part.replace(folder / FILE)


def _build(kind: Any, value: Any, where: str) -> Any:
    """Build a value of a declared type from JSON, by the annotations of the classes here.

    Raises:
        ValueError: a field is missing or of another type; the message names it, as in ``processes[0].logs[1].bytes``.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:
        rest = [k for k in inner if k is not NoneType]
        return None if value is None else _build(rest[0], value, where)
    if origin is list:
        _check(value, list, where)
        return [_build(inner[0], v, f"{where}[{n}]") for n, v in enumerate(value)]
    if origin is dict:
        _check(value, dict, where)
        return {k: _build(inner[1], v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(kind, type) and kind.__module__ == __name__:
        _check(value, dict, where)
        return kind(**_arguments(kind, value, where))
    if kind is not Any:
        _check(value, kind, where)
    return value


def _arguments(kind: Any, content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return what an object is built from; keys that are not known are let through unread."""
    found = {}
    for one in fields(kind):
        place = f"{where}.{one.name}" if where else one.name
        if one.name in content:
            found[one.name] = _build(one.type, content[one.name], place)
        elif one.default is MISSING and one.default_factory is MISSING:
            raise ValueError(f"{place} is missing")
    return found


def _check(value: Any, kind: type, where: str) -> None:
    allowed = (int, float) if kind is float else (kind,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where} should be {_NAMES[kind]}, and is {str(value)[:60]!r}")


_NAMES: dict[type, str] = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false", list: "a list", dict: "an object",
}  # fmt: skip
