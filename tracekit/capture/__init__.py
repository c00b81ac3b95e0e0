"""The run module: start programs with timing switched on, keep all that they print, know what was run.

    Plan (one command, or a SPEC.toml) -> prepare -> Conductor: guard, tee, watch -> capture directory, manifest

The guard (`guard.py`) is the parent of all programs, the tee (`tee.py`) moves their outputs to files, the conductor
(`conduct.py`) starts, watches and stops. `run` is the way in, `run_pair` makes a clean and a timed run.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tracekit import manifest
from tracekit.capture import folder as folders
from tracekit.capture.conduct import Conductor
from tracekit.capture.display import Display
from tracekit.capture.errors import CaptureError
from tracekit.capture.pair import save_pair
from tracekit.capture.prepare import Settings, prepare
from tracekit.capture.presets import Preset
from tracekit.capture.spec import Plan, read_spec, single
from tracekit.errors import TracekitError

__all__ = [
    "CaptureError",
    "Display",
    "Plan",
    "Preset",
    "Settings",
    "read_spec",
    "run",
    "run_pair",
    "single",
]


def run(
    plan: Plan,
    folder: str | Path,
    settings: Settings,
    chosen: Sequence[Preset] = (),
    *,
    stamp: bool = False,
    display: Display | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> tuple[Path, manifest.Manifest]:
    """Run a plan and leave a capture directory; return it and its manifest.

    Args:
        plan: what to run.
        folder: the directory, which must not exist (with `stamp`: which gets a fresh one below it).
        settings: how.
        chosen: presets, set in the processes that are to be timed.
        stamp: see `folder`.
        display: where the programs' output is shown.
        notify: called with a sentence for each thing that the user should hear of meanwhile.

    Raises:
        CaptureError: tracekit could not do its part. If that was known before the start, no directory is left.
        UsageError: a preset or pattern is not as it should be.
    """
    prepared = prepare(plan, chosen, settings)
    made = folders.make(folder, stamp=stamp)
    if display is not None:
        display.start()
    return made, Conductor(plan, prepared, chosen, settings, made, display, notify).run()


def run_pair(
    plan: Plan,
    folder: str | Path,
    settings: Settings,
    chosen: Sequence[Preset],
    *,
    stamp: bool = False,
    new_display: Callable[[], Display | None] = lambda: None,
    notify: Callable[[str], None] = lambda _: None,
) -> tuple[Path, list[manifest.Manifest]]:
    """Run a plan twice, clean and then timed, into ``clean`` and ``timed`` below the directory.

    The timed run is left out if the clean one did not end well. Arguments and errors are those of `run`.
    """
    prepare(plan, chosen, settings)
    made = folders.make(folder, stamp=stamp)
    runs: list[manifest.Manifest] = []
    for role in ("clean", "timed"):
        notify(f"{role} run")
        shown = new_display()
        try:
            runs.append(run(plan, made / role, replace(settings, role=role), chosen, display=shown, notify=notify)[1])
        except TracekitError:
            if not runs and not (made / role).exists():
                folders.discard(made)
            raise
        save_pair(made, runs)
        outcome = runs[-1].outcome
        if outcome is None or outcome.name != "ok":
            break
    return made, runs
