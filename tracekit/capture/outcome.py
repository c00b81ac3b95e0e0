"""How a run ended, in words: statuses, signals, and why no timing line came."""

import signal
from collections.abc import Sequence
from pathlib import Path

from tracekit import manifest
from tracekit.capture.presets import Preset


def status_text(status: int) -> str:
    """Return an exit status in words.

    >>> status_text(3), status_text(-9)
    ('ended with status 3', 'was killed by SIGKILL')
    """
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def exit_status(status: int) -> int:
    """Return the status that a shell would give.

    >>> exit_status(3), exit_status(-9)
    (3, 137)
    """
    return status if status >= 0 else 128 - status


def said(line: str) -> str:
    """Return the last words of a program, as the end of a sentence."""
    return f"; its last line: {line}" if line else ""


def why_no_lines(preset: Preset, processes: Sequence[manifest.Process], counts: dict[str, int]) -> list[str]:
    """Return remarks on timed processes that printed no timing line: what is known first, then what is likely.

    Args:
        preset: what was to time them.
        processes: all of the run.
        counts: timing lines by process.
    """
    silent = [p for p in processes if p.timed and p.pid is not None and not counts.get(p.name)]
    if not silent:
        return []
    names = ", ".join(p.name for p in silent)
    remarks = [f"{names}: {preset.switch} was set, and no line with {preset.markers[0]} came"]
    known = [remark for process in silent for remark in _known(preset, process)]
    return remarks + (known or [f"likely reasons: {'; '.join(preset.no_lines)}"])


def _known(preset: Preset, process: manifest.Process) -> list[str]:
    """Return what the files that a process mapped tell."""
    from tracekit.binary.hooks import hook, search_files
    from tracekit.errors import TracekitError

    try:
        if sent := [f"{name}={process.env[name]}" for name in preset.elsewhere if name in process.env]:
            return [f"{process.name}: {' '.join(sent)} is set: the lines went there"]
        wanted = hook(preset.switch)
        if wanted.language != "binary" or not process.mapped:
            return []
        found = search_files(wanted, [Path(p) for p in process.mapped if Path(p).is_file()])
    except TracekitError:
        return []
    if found.found:
        return []
    files = len(found.searched)
    return [f"{process.name}: none of the {files} files that it mapped holds {preset.switch}: it is not instrumented"]
