"""`tracekit query`: SQL over a trace, through the perfetto package and a trace_processor binary.

The package talks to a program of its own that is not part of it. It is never downloaded unless that is asked for.
"""

import contextlib
import platform
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import polars as pl
from perfetto.common.exceptions import PerfettoException
from perfetto.prebuilts.manifests.trace_processor_shell import TRACE_PROCESSOR_SHELL_MANIFEST
from perfetto.prebuilts.perfetto_prebuilts import get_perfetto_prebuilt
from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

from tracekit import rules
from tracekit.errors import TracekitError, UsageError

_PROGRAM = "trace_processor_shell"


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A query that is worth a name."""

    name: str
    meaning: str
    sql: str


@cache
def named_queries() -> dict[str, NamedQuery]:
    """Return the queries of ``tracekit/rules/queries.toml`` by name.

    Raises:
        UsageError: the file of one's own is broken.
    """
    return {q.name: q for q in rules.load(NamedQuery, "queries.toml", "query")}


def trace_processor(given: str | Path | None = None, *, download: bool = False) -> Path:
    """Find the trace_processor binary: the one given, on PATH, or downloaded by the perfetto package before.

    Args:
        given: its path.
        download: let the perfetto package fetch the binary that it pins, if there is none.

    Raises:
        UsageError: no file stands at `given`.
        TracekitError: there is none; the message says how to get one.
    """
    if given is not None:
        if not Path(given).is_file():
            raise UsageError(f"{given}: no such file; --trace-processor names the {_PROGRAM} binary")
        return Path(given)
    found = shutil.which(_PROGRAM)
    if found:
        return Path(found)
    cached = _cached()
    if cached is not None and cached.exists():
        return cached
    if download:
        return _downloaded()
    raise TracekitError(
        f"no {_PROGRAM} on this machine: name one with --trace-processor PATH, or let the perfetto package fetch its "
        "own with --download (needs the internet); the page at https://ui.perfetto.dev runs SQL without one"
    )


def _cached() -> Path | None:
    """Return where the perfetto package keeps the binary of this kind of machine, None if it has none for it."""
    for entry in TRACE_PROCESSOR_SHELL_MANIFEST:
        if entry.get("platform") == sys.platform and platform.machine().lower() in entry.get("machine", ()):
            file = Path(entry["file_name"])
            name = f"{file.stem}-{entry['sha256'][:16]}{file.suffix}"
            return Path.home() / ".local" / "share" / "perfetto" / "prebuilts" / name
    return None


def _downloaded() -> Path:
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the package tells its progress on standard output
            path = get_perfetto_prebuilt(TRACE_PROCESSOR_SHELL_MANIFEST)
    except Exception as error:
        raise TracekitError(f"the download of {_PROGRAM} failed ({error}); name one with --trace-processor") from error
    return Path(path)


def checked(trace: str | Path, sql: str) -> str:
    """Return the SQL to run, of a named query its own: what can be told without the program is told first.

    Raises:
        UsageError: there is no such trace; a single word is the name of no query.
    """
    if not Path(trace).is_file():
        raise UsageError(f"{trace}: no such file; write one with `tracekit convert`")
    word = sql.strip()
    if named := named_queries().get(word):
        return named.sql
    if len(word.split()) < 2:
        raise UsageError(f"{word!r} is neither SQL nor the name of a query: {', '.join(named_queries())}")
    return sql


def query(trace: str | Path, sql: str, binary: Path) -> pl.DataFrame:
    """Run SQL on a trace.

    Args:
        trace: the file.
        sql: PerfettoSQL, or the name of a query of `named_queries`.
        binary: see `trace_processor`.

    Raises:
        UsageError: there is no such trace, or the SQL is wrong.
        TracekitError: the program does not start, or cannot read the trace.
    """
    text = checked(trace, sql)
    try:
        processor = TraceProcessor(trace=str(trace), config=TraceProcessorConfig(bin_path=str(binary)))
    except (PerfettoException, OSError) as error:
        raise TracekitError(f"{binary}: cannot open {trace}: {_first_lines(error)}") from error
    try:
        frame: pl.DataFrame = processor.query(text).as_polars_dataframe()
    except PerfettoException as error:
        raise UsageError(f"the query failed: {_first_lines(error)}") from error
    finally:
        processor.close()
    return frame


def _first_lines(error: BaseException) -> str:
    return " ".join(line.strip() for line in str(error).splitlines()[:4] if line.strip())
