"""Before anything is started: environments, executables, ports, instrumentation. What cannot work is refused here."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tracekit.capture import procfs, spec
from tracekit.capture.errors import CaptureError
from tracekit.capture.presets import Preset, presets
from tracekit.errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """How a plan is run and captured. Times are seconds.

    Attributes:
        env, unset: changes to the environment of every process; they win over presets and plan.
        options: values for `presets.OPTIONS` that were asked for.
        tty: give programs pseudo-terminals.
        zstd: compress the logs while they are written.
        stall_after_s: stop the run when nothing was printed for so long; None: never.
        stall_patterns: more stall patterns, ``TEXT`` or ``TEXT:N``.
        grace_s: from asking a program to end to killing it.
        preload: a library to preload into the timed processes: the shim of a preset that needs one.
        sample_s: how often to sample power, frequency, temperature; None: never.
        show: whose output to show: ``main`` (the process that ends the run), ``all``, ``none``.
        check: refuse programs that have no timing hook.
        role: ``clean`` (all timing variables are unset) or ``timed`` in a pair.
        stdin: what the process that ends the run reads; None: nothing.
        command: the command line to write down.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    unset: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    tty: bool = False
    zstd: bool = False
    stall_after_s: float | None = None
    stall_patterns: Sequence[str] = ()
    grace_s: float = 10.0
    preload: str | None = None
    sample_s: float | None = None
    show: str = "main"
    check: bool = True
    role: str | None = None
    stdin: int | None = None
    command: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """One process with all that starting it takes."""

    process: spec.Process
    path: str
    cwd: str
    env: Mapping[str, str]
    unset: tuple[str, ...]
    #: Names of variables that were set for this run.
    changed: tuple[str, ...]
    timed: bool


def prepare(plan: spec.Plan, chosen: Sequence[Preset], settings: Settings) -> list[Prepared]:
    """Work out everything that a start takes, and refuse what cannot work.

    Raises:
        CaptureError: a program is missing, a port is taken, or a program has no timing hook.
        UsageError: a preset does not have a named option, or no process is to be timed.
    """
    _check_preload(chosen, settings.preload)
    if chosen and not any(process.timed for process in plan.processes):
        raise UsageError(
            f"preset {chosen[0].name} would time nothing: no process of {plan.name or plan.end} has timed = true; "
            "nothing was started"
        )
    ready = []
    beside = None
    for process in sorted(plan.processes, key=lambda p: p.name != plan.end):  # the client's place tells where to look
        one = _prepared(process, chosen, settings, beside)
        beside = beside or str(Path(one.path).parent)
        ready.append(one)
    order = [p.name for p in plan.processes]
    ready.sort(key=lambda one: order.index(one.process.name))
    _check_ports(plan.processes)
    if settings.check:
        _check_hooks(ready, chosen)
    return ready


def _prepared(process: spec.Process, chosen: Sequence[Preset], settings: Settings, beside: str | None) -> Prepared:
    cwd = str(Path(process.cwd or ".").absolute())
    if not Path(cwd).is_dir():
        raise CaptureError(f"{process.name}: the working directory {cwd} does not exist; nothing was started")
    env, unset, changed = environment(process, chosen, settings)
    path = spec.executable(process, env, beside)
    if path is None:
        tried = " or ".join((process.program, *process.instead))
        there = Path(process.cwd or ".") / process.program
        if "/" in process.program and there.exists():
            why = "is a directory" if there.is_dir() else "is not executable (chmod +x?)"
            raise CaptureError(f"{process.name}: {there} {why}; nothing was started")
        where = "" if "/" in process.program else " on the PATH"
        raise CaptureError(f"{process.name}: no program {tried}{where}; nothing was started")
    known = chosen or presets()
    return Prepared(process, path, cwd, env, unset, changed, any(p.is_on(env) for p in known))


def environment(
    process: spec.Process, chosen: Sequence[Preset], settings: Settings
) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]:
    """Return a process's environment, the names unset in it, and the names set for this run.

    Later wins: inherited, the presets' variables (gone from what is not to be timed), the plan's, the user's.
    """
    env = dict(os.environ)
    moved = {name for preset in presets() for name in preset.elsewhere if env.pop(name, None) is not None}
    switches = [name for preset in chosen for name in preset.variables]
    clean = settings.role == "clean"
    unset = [*process.unset, *settings.unset]
    if clean:
        from tracekit.binary import hooks

        every = (name for preset in presets() for name in preset.variables)
        unset = [*switches, *every, *(hook.variable for hook in hooks.declared()), *unset]
    elif not process.timed:
        for name in switches:
            env.pop(name, None)
    changed: dict[str, str] = {}
    if process.timed and not clean:
        for preset in chosen:
            options = {o: v for o, v in settings.options.items() if o in preset.options or len(chosen) == 1}
            changed |= preset.environment(options)
        if settings.preload:
            own = env.get("LD_PRELOAD", "")
            changed["LD_PRELOAD"] = f"{Path(settings.preload).absolute()} {own}".strip()
    changed |= process.env
    changed |= settings.env
    for name in unset:
        changed.pop(name, None)
    gone = [name for name in unset if env.pop(name, None) is not None or name in settings.unset]
    if (env | changed).get("LD_PRELOAD"):
        # A shim that somebody else preloads times unless its variable says that it should not.
        off = () if process.timed and not clean else presets() if clean else chosen
        changed |= {p.switch: p.off[0] for p in off if p.preload and p.off and p.switch not in changed}
    removed = tuple(name for name in dict.fromkeys([*gone, *sorted(moved)]) if name not in changed)
    return env | changed, removed, tuple(changed)


def _check_preload(chosen: Sequence[Preset], preload: str | None) -> None:
    """Refuse a preset without its shim, and a shim that prints none of its lines."""
    needing = [p for p in chosen if p.preload]
    if preload is None:
        if needing:
            raise UsageError(f"preset {needing[0].name} needs --preload FILE (see `tracekit patch build`)")
        return
    if not needing:
        names = ", ".join(p.name for p in presets() if p.preload)
        raise UsageError(f"--preload belongs to a preset that needs a shim: {names}")
    try:
        content = Path(preload).read_bytes()
    except OSError as error:
        raise CaptureError(f"{preload}: cannot be read ({error.strerror}); nothing was started") from error
    if not any(marker.encode() in content for preset in needing for marker in preset.markers):
        raise CaptureError(f"{preload}: prints no {needing[0].markers[0]} lines; nothing was started")


def _check_ports(processes: Sequence[spec.Process]) -> None:
    for process in processes:
        if process.port is None or not procfs.is_taken(process.host, process.port):
            continue
        holder = procfs.listener(process.port, ())
        by = f" by {holder.command}" + (f" (pid {holder.pid})" if holder.pid else "") if holder else ""
        raise CaptureError(
            f"{process.name}: port {process.port} is already in use{by}; stop that, or choose other ports "
            "(--set port=N); nothing was started"
        )


def _check_hooks(ready: Sequence[Prepared], chosen: Sequence[Preset]) -> None:
    if not chosen:
        return
    from tracekit.binary import missing_hook

    for one in ready:
        for preset in chosen:
            if preset.preload or not (one.process.timed and preset.is_on(one.env)):
                continue
            reason = missing_hook(one.path, preset.switch, one.env)
            if reason:
                raise CaptureError(
                    f"{one.process.name}: {reason} (--no-check runs it all the same); nothing was started"
                )
