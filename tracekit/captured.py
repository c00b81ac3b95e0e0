"""What a capture tells of the logs in it: how its workers share a step, and why its numbers may not be whole."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracekit import manifest
from tracekit.checks import Finding
from tracekit.errors import NothingRecognisedError, UsageError
from tracekit.manifest import PAIR_FILE, Log, Manifest


@dataclass(frozen=True, slots=True)
class Captured:
    """A capture directory of which logs are read; `damage` says why its manifest could not be."""

    folder: Path
    manifest: Manifest | None
    damage: str = ""
    #: Logs that are read and that this capture did not write.
    strange: tuple[str, ...] = ()

    @property
    def clean(self) -> Manifest | None:
        """The clean run beside a timed one, if this is the timed run of a pair.

        Raises:
            UsageError: its manifest is damaged.
        """
        if self.manifest is None or self.manifest.role != "timed":
            return None
        return manifest.load(self.folder.parent / "clean")


def captures(paths: Sequence[str]) -> list[Captured]:
    """Return the captures that these logs belong to: directories whose manifest names one of them."""
    found = []
    for folder in dict.fromkeys(Path(path).parent for path in paths):
        try:
            known = manifest.load(folder)
        except UsageError as error:
            found.append(Captured(folder, None, str(error)))
            continue
        read = [Path(path).name for path in paths if Path(path).parent == folder]
        strange = () if known is None else _strange(known, read)
        if known is not None and len(strange) < len(read):
            found.append(Captured(folder, known, strange=strange))
    return found


def _strange(run: Manifest, read: Sequence[str]) -> tuple[str, ...]:
    """Return the logs that a capture did not write; one that was packed or unpacked since is its log, once."""
    own = {file for file in read if file in run.workers}
    seen, left = {_plain(file) for file in own}, {_plain(file) for file in run.workers}
    strange = []
    for file in read:
        name = _plain(file)
        if file not in own and (name in seen or name not in left):
            strange.append(file)
        seen.add(name)
    return tuple(strange)


def _plain(file: str) -> str:
    return file.removesuffix(".zst").removesuffix(".gz")


def missing(run: Manifest, folder: Path) -> list[Log]:
    """Return the logs of a capture that are there no more under any name; empty ones are not missed."""
    logs = [log for process in run.processes for log in process.logs if log.bytes != 0]
    return [o for o in logs if not any((folder / (_plain(o.file) + end)).exists() for end in ("", ".gz", ".zst"))]


def missing_text(folder: Path) -> str:
    """Say which logs a capture wrote that are missing; empty if none is, or the directory is no capture."""
    try:
        run = manifest.load(folder)
    except UsageError:
        return ""
    gone = [] if run is None else missing(run, folder)
    return f"missing of this capture: {', '.join(log.file for log in gone)}" if gone else ""


def timed_run(folder: Path) -> Path | None:
    """Return the directory of the timed run if a directory holds a pair, None if it holds none.

    Raises:
        NothingRecognisedError: the pair has no timed run, because the clean one did not end well.
    """
    if not (folder / PAIR_FILE).is_file():
        return None
    if not (folder / "timed").is_dir():
        raise NothingRecognisedError(
            f"{folder}: a pair without a timed run, since its clean run did not end well; see {folder / 'clean'}"
        )
    return folder / "timed"


def silent(one: Captured) -> set[str]:
    """Return the logs in which no timing line is to be missed: of a process without timing, or beside its timed log."""
    found = set()
    for process in one.manifest.processes if one.manifest else ():
        elsewhere = any(log.timing_lines for log in process.logs)
        logs = process.logs if not process.timed else [o for o in process.logs if elsewhere and o.timing_lines == 0]
        found |= {str(one.folder / log.file) for log in logs}
    return found


def topology(found: Sequence[Captured]) -> str | None:
    """Return how the workers of these captures share a step; None where they do not tell, or not the same."""
    told = {c.manifest.topology if c.manifest else None for c in found}
    return told.pop() if len(told) == 1 else None


def findings(one: Captured) -> Iterator[Finding]:
    """Yield why the logs of a capture may tell less than the whole run, and how much longer timing made it."""
    if one.manifest is None:
        yield Finding("fault", "manifest", f"how the run went is not known: {one.damage}")
        return
    yield from _unfinished(one.manifest)
    yield from _lost(one)
    yield from _timed_clean(one)
    yield from _pair(one)


def _unfinished(run: Manifest) -> Iterator[Finding]:
    if run.outcome is None:
        what = "the run is still on, or was killed with its guard: the logs end where they end"
        yield Finding("fault", "run-unfinished", what)
    elif run.outcome.name != "ok":
        end = _ENDS.get(run.outcome.name, run.outcome.name)
        what = f"the run {end}: {run.outcome.evidence}; the numbers are of what it did until then"
        yield Finding("fault", f"run-{run.outcome.name}", what)


_ENDS = {
    "failed": "failed",
    "stalled": "stalled and was stopped",
    "blocked": "never got under way",
    "interrupted": "was interrupted",
}


def _lost(one: Captured) -> Iterator[Finding]:
    assert one.manifest is not None
    logs = [log for process in one.manifest.processes for log in process.logs]
    if not one.manifest.capture.complete:
        lost = sum(log.uncaptured_bytes for log in logs)
        what = f"the capture is not whole: {one.manifest.capture.stopped or 'it had to stop'}"
        more = f"; {lost:,} bytes that came later are missing" if lost else ""
        yield Finding("fault", "capture-incomplete", what + more)
    if gone := missing(one.manifest, one.folder):
        names = ", ".join(log.file for log in gone)
        yield Finding("fault", "capture-missing", f"logs of this capture that are missing: {names}", len(gone))
    if one.strange:
        what = f"not part of this capture (a copy? it then counts twice): {', '.join(one.strange)}"
        yield Finding("fault", "capture-strange", what, len(one.strange))
    if changed := [log for log in logs if _changed(one.folder / log.file, log)]:
        first = changed[0]
        what = f"logs that are not as they were captured (a copy that was cut?): {first.file} had {first.bytes:,} bytes"
        yield Finding("fault", "capture-changed", what, len(changed))


def _changed(path: Path, log: Log) -> bool:
    """Whether a log has another size than the capture wrote; the plain size of a packed one is not known."""
    if path.suffix != ".log":
        return False
    try:
        return log.bytes is not None and path.stat().st_size != log.bytes
    except OSError:  # missing, or packed since
        return False


def _timed_clean(one: Captured) -> Iterator[Finding]:
    """Say so if the clean run of a pair was timed all the same."""
    try:
        run = one.manifest if one.manifest is not None and one.manifest.role == "clean" else one.clean
    except UsageError:  # whoever needs its throughput says so
        return
    if run is not None and (lines := run.timing_lines):
        what = f"the clean run of the pair printed {lines:,} timing lines: it is not clean, its throughput says nothing"
        yield Finding("fault", "clean-run-timed", what)


def _pair(one: Captured) -> Iterator[Finding]:
    """Say how long the two runs of a pair took: by so much the timing changed what it measures."""
    try:
        rows = json.loads((one.folder.parent / PAIR_FILE).read_text(encoding="utf-8"))["runs"]
        took = {row["role"]: row["duration_ns"] for row in rows}
        clean, timed = took["clean"] / 1e9, took["timed"] / 1e9
    except (OSError, ValueError, KeyError, TypeError):  # no pair, or one that was never finished
        return
    if one.manifest is not None and one.manifest.role == "timed" and clean > 0:
        what = (
            f"the timed run of a pair: it took {timed:.1f} s, the clean one {clean:.1f} s ({timed / clean:.2f} times)"
        )
        yield Finding("note", "pair", what)
