"""Conducting a run: start in order, watch, stop, leave nothing behind, write down what happened."""

import contextlib
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import tracekit
from tracekit import manifest
from tracekit.capture import folder as folders
from tracekit.capture import guard as guarding
from tracekit.capture import host, procfs, secrets
from tracekit.capture.display import Display, Prefixed
from tracekit.capture.launch import Guard
from tracekit.capture.outcome import exit_status, said, status_text, why_no_lines
from tracekit.capture.prepare import Prepared, Settings
from tracekit.capture.presets import Preset, presets
from tracekit.capture.sample import Sampler
from tracekit.capture.spec import Plan, Ready
from tracekit.capture.tee import Layout, Output, Tee, open_output
from tracekit.capture.watch import Hit, StallWatch, patterns
from tracekit.errors import TracekitError

#: How long what a program leaves behind, or a client whose worker died, may take to end by itself.
LINGER_S = 5.0
_POLL_S = 0.1
_LAST_WORDS_S = 0.5
_FIRST_LOOK_S = 0.2
_LAST_LOOK_S = 60.0

#: What ends a run in order; twice, at once.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class _Program:
    """One process of the plan, and how it stands."""

    ready: Prepared
    facts: manifest.Process
    outputs: list[Output]
    #: None: not started. Set while it runs, and kept.
    pid: int | None = None
    is_ready: bool = False
    exited: bool = False
    #: It could not be executed.
    refused: bool = False
    mapped: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        return self.ready.process.name

    @property
    def running(self) -> bool:
        return self.pid is not None and not self.exited

    def last_line(self) -> str:
        """Return its last words: of stderr, else of stdout."""
        return next((line for o in reversed(self.outputs) if (line := o.watch.last_line())), "")


@dataclass(slots=True)
class Conductor:
    """One run from start to manifest.

    Args:
        plan: what to run.
        prepared: its processes, prepared.
        chosen: the presets.
        settings: how.
        folder: the capture directory, made and empty.
        display: where output is shown, if anywhere.
        notify: called with one sentence for each thing that the user should hear of.
    """

    plan: Plan
    prepared: Sequence[Prepared]
    chosen: Sequence[Preset]
    settings: Settings
    folder: Path
    display: Display | None
    notify: Callable[[str], None]
    programs: list[_Program] = field(default_factory=list)
    verdict: manifest.Outcome | None = None
    notes: list[str] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)
    hits: deque[Hit | None] = field(default_factory=deque)
    #: A stall pattern that came, and until when the programs may end by themselves.
    pending: tuple[Hit, float] | None = None
    stopping: bool = False
    idle: bool = True
    lost_guard: bool = False
    said_disk: bool = False
    next_look: float = 0.0
    look_gap: float = _FIRST_LOOK_S
    wake_read: int = -1
    wake_write: int = -1
    guard: Guard = field(init=False)
    tee: Tee = field(init=False)
    record: manifest.Manifest = field(init=False)

    def run(self) -> manifest.Manifest:
        """Run it all and return the manifest, which then also stands in the folder.

        Raises:
            CaptureError: tracekit could not do its part; what was started has been stopped.
        """
        try:
            folders.reserve(self.folder)
            with self._signals():
                self._open()
                self._save()
                with Guard() as self.guard:
                    self._go()
                    self.tee.finish(2.0)
                if self.display is not None:
                    self.display.finish()
                self._close()
        except (TracekitError, OSError):
            if any(p.pid is not None for p in self.programs):
                folders.release(self.folder)
            else:
                folders.discard(self.folder)
            raise
        return self.record

    def _go(self) -> None:
        """Start, watch, stop."""
        sampler = Sampler(self.folder, self.settings.sample_s) if self.settings.sample_s else None
        self.guard.settle(self.folder / manifest.FILE, self.settings.grace_s)
        self.tee.start()
        if sampler is not None:
            sampler.start()
        try:
            self._start_all()
            self._watch()
        finally:
            self._stop_all()
            if sampler is not None:
                sampler.finish()
                if sampler.trouble:
                    self.notes.append(sampler.trouble)

    # -- before and after ------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Make logs, pipes and the record of the run."""
        stalls = StallWatch(patterns(self.settings.stall_patterns))
        # A clean run is to print no timing line of whatever kind.
        sought = presets() if self.settings.role == "clean" else self.chosen
        markers = tuple(dict.fromkeys(m.encode() for p in sought for m in p.markers))
        layout = Layout(self.folder, self.settings.tty, self.settings.zstd, stalls, markers)
        for one in self.prepared:
            ready = one.process.ready
            line = ready.line if ready else None
            outputs = [open_output(layout, one.process.name, which, line) for which in ("stdout", "stderr")]
            self._show(one.process.name, outputs)
            self.programs.append(_Program(one, _facts(one, outputs), outputs))
        self.tee = Tee([o for p in self.programs for o in p.outputs], self.display, self._tell)
        self.record = self._record()

    def _show(self, name: str, outputs: Sequence[Output]) -> None:
        if self.display is None or self.settings.show == "none":
            return
        is_main = name == self.plan.end
        if not is_main and self.settings.show != "all":
            return
        for output, target in zip(outputs, (self.display.out, self.display.err), strict=True):
            # What others print must not mix into what the main program's stdout says.
            output.show_on = target if is_main else self.display.err
            output.prefix = None if is_main else Prefixed(name)

    def _record(self) -> manifest.Manifest:
        settings = self.settings
        return manifest.Manifest(
            tracekit=tracekit.__version__,
            name=self.plan.name or self.plan.end,
            presets=[p.name for p in self.chosen],
            timed=any(p.ready.timed for p in self.programs),
            topology=self.plan.topology or next((p.topology for p in self.chosen), None),
            end=self.plan.end,
            command=secrets.kept_arguments(settings.command),
            cwd=str(Path.cwd()),
            started=manifest.Moment(time.time_ns(), time.monotonic_ns()),
            ended=None,
            outcome=None,
            capture=manifest.Capture(
                tty=settings.tty,
                zstd=settings.zstd,
                stall_after_s=settings.stall_after_s,
                grace_s=settings.grace_s,
                sample_s=settings.sample_s,
            ),
            processes=[p.facts for p in self.programs],
            host=host.describe(),
            caveats=[] if settings.role == "clean" else [c for p in self.chosen for c in p.caveats],
            role=settings.role,
        )

    def _close(self) -> None:
        """Complete the manifest and save it."""
        record = self.record
        record.ended = manifest.Moment(time.time_ns(), time.monotonic_ns())
        record.capture.complete = not self.tee.stopped
        record.capture.stopped = self.tee.stopped or None
        record.capture.not_shown_bytes = self.display.dropped_bytes if self.display else 0
        for program in self.programs:
            program.facts.mapped = sorted(program.mapped)
            for log, output in zip(program.facts.logs, program.outputs, strict=True):
                log.bytes, log.lines = output.byte_count, output.line_count
                log.timing_lines = self._timing_lines(output)
                log.uncaptured_bytes = output.uncaptured_bytes
        mapped = sorted({path for p in self.programs for path in p.mapped})
        # Hashing gigabytes of libraries takes its time: whoever interrupts twice does not want to wait for it.
        record.binaries = host.identities(mapped, lambda: len(self.signals) > 1)
        record.host["python_packages"] = host.python_packages(mapped)
        self._remark_timing()
        self._remark_silence()
        outcome = self.verdict or manifest.Outcome("ok", "", 0)
        outcome.notes = self.notes
        record.outcome = outcome
        folders.release(self.folder)
        self._save()

    def _timing_lines(self, output: Output) -> int:
        """Return the markers in a log: those that passed, if all of it was stored."""
        passed = output.watch.marked
        if not self.tee.stopped:
            return sum(passed.values())
        from tracekit.source import Source, Stream

        stored = Source(Stream(str(output.log), output.process)).blocks()
        return sum(block.data.count(marker) for block in stored for marker in passed)

    def _remark_timing(self) -> None:
        """Say so if a run that was to be clean was timed: the count tells, whatever the environment was."""
        if self.settings.role != "clean":
            return
        for program in self.programs:
            if lines := sum(log.timing_lines or 0 for log in program.facts.logs):
                program.facts.timed = self.record.timed = True
                self.notes.append(
                    f"{program.name}: {lines:,} timing lines came in the clean run, so it is not clean and its "
                    "throughput says nothing (a preloaded shim, or a program that always prints them?)"
                )

    def _remark_silence(self) -> None:
        if self.settings.role == "clean" or (self.verdict and self.verdict.name in ("failed", "blocked")):
            return  # no lines were to come, or how it ended is reason enough
        for preset in self.chosen:
            counts = {
                p.name: sum(o.watch.marked.get(m.encode(), 0) for o in p.outputs for m in preset.markers)
                for p in self.programs
            }
            timed = [p.facts for p in self.programs if p.facts.timed and preset.is_on(p.ready.env)]
            self.notes += why_no_lines(preset, timed, counts)

    # -- start and watch -------------------------------------------------------------------------------------------

    def _start_all(self) -> None:
        """Start the programs, each when those it waits for are ready."""
        waiting = list(self.programs)
        self._check_signals()
        while waiting and self.verdict is None:
            by_name = {p.name: p for p in self.programs}
            free = [p for p in waiting if all(by_name[n].is_ready for n in p.ready.process.after)]
            for program in free:
                waiting.remove(program)
                self._start(program)
            unready = [p for p in self.programs if p.running and not p.is_ready]
            if unready and waiting and self.verdict is None:
                self._wait(lambda unready=unready: any(p.is_ready for p in unready))  # type: ignore[misc]
            elif not free and waiting:
                self._pump(_POLL_S)
        for program in self.programs:
            for output in program.outputs:
                output.close_program_end()
        if self.verdict is None:
            self._save()

    def _start(self, program: _Program) -> None:
        one = program.ready
        stdin = self.settings.stdin if program.name == self.plan.end else None
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        fds = [null if stdin is None else stdin, *(o.program_end for o in program.outputs)]
        for output in program.outputs:
            fds += [output.pipe, output.log_fd, output.stamps_fd]
        self.idle = False
        self.guard.start(program.name, one.path, one.process.argv, one.env, one.cwd, fds, plain=not self.settings.zstd)
        os.close(null)
        for output in program.outputs:
            output.close_program_end()
        # Whatever else happens meanwhile: what is being started must be known before it can be stopped.
        while program.pid is None and not program.refused and not self.lost_guard:
            self._pump(_POLL_S)
        self.look_gap, self.next_look = _FIRST_LOOK_S, time.monotonic() + _FIRST_LOOK_S
        if program.ready.process.ready is None and program.pid is not None:
            program.is_ready = True

    def _watch(self) -> None:
        """Wait for the program whose end ends the run, and judge."""
        end = next(p for p in self.programs if p.name == self.plan.end)
        if end.pid is None or not self._wait(lambda: end.exited):
            return
        status = end.facts.status
        if status == 0:
            self.verdict = manifest.Outcome("ok", f"{end.name} ended with status 0", 0)
            if self.pending:
                self.notes.append(f"a line of a known stall pattern came: {self.pending[0].line}")
        elif status is not None:
            self._hear_last_words(end)
            line = self.pending[0].line if self.pending else end.last_line()
            why = f" ({self.pending[0].pattern.meaning})" if self.pending else ""
            self._judge("failed", f"{end.name} {status_text(status)}{said(line)}{why}")

    def _judge(self, name: str, evidence: str) -> None:
        """Give the verdict; the first counts."""
        if self.verdict is None:
            self.verdict = manifest.Outcome(name, evidence, 0)

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _wait(self, until: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait, doing all that a run needs meanwhile; False at the timeout or when the run is to end (at once)."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not until():
            if self.lost_guard or (len(self.signals) > 1 if self.stopping else self.verdict is not None):
                return False
            left = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
            if left <= 0:
                return False
            self._pump(left)
        return True

    def _pump(self, timeout_s: float) -> None:
        """Hear what happened: programs, outputs, signals, clocks."""
        ready, _, _ = select.select([self.guard.fileno(), self.wake_read], [], [], timeout_s)
        if self.wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                while os.read(self.wake_read, 4096):
                    pass
        if self.guard.fileno() in ready:
            self._hear(self.guard.receive())
        while self.hits:
            self._on_hit(self.hits.popleft())
        now = time.monotonic()
        if now >= self.next_look and not self.stopping:
            self._look()
        if not self.stopping:
            self._check_signals()
            self._check_ready(now)
            self._check_stall(now)

    def _hear(self, event: Mapping[str, Any] | None) -> None:
        if event is None:
            self.lost_guard = True
            self._judge("failed", "the guard process was killed; everything it had started was stopped")
            self.guard.kill_adopted()
            return
        if event["event"] == "idle":
            self.idle = not any(p.running for p in self.programs)
            return
        program = next(p for p in self.programs if p.name == event["name"])
        if event["event"] == "started":
            program.pid = program.facts.pid = event["pid"]
            program.facts.started_mono_ns = event["mono_ns"]
        elif event["event"] == "refused":
            program.refused = True
            self.idle = not any(p.running for p in self.programs)
            reason = os.strerror(event["errno"])
            self._judge("blocked", f"{program.name}: {program.ready.path} could not be executed ({reason})")
        else:
            self._on_exit(program, event)

    def _on_exit(self, program: _Program, event: Mapping[str, Any]) -> None:
        facts = program.facts
        program.exited = True
        facts.status, facts.ended_mono_ns = event["status"], event["mono_ns"]
        facts.user_s, facts.system_s = round(event["user_s"], 6), round(event["system_s"], 6)
        facts.max_rss_bytes = event["max_rss_bytes"]
        if self.stopping or program.name == self.plan.end:
            return
        self._hear_last_words(program)
        what = f"{program.name} {status_text(event['status'])}"
        if program.is_ready:
            self._judge("failed", f"{what} while the run was on{said(program.last_line())}")
        else:
            port = program.ready.process.port
            hint = f" (is port {port} taken?)" if port and event["status"] == 0 else ""
            self._judge("failed", f"{what} before it was ready{hint}{said(program.last_line())}")

    def _hear_last_words(self, program: _Program) -> None:
        """Let what an ended program printed come through the tee; not for long, as its children may keep it open."""
        deadline = time.monotonic() + _LAST_WORDS_S
        while not all(o.ended for o in program.outputs) and time.monotonic() < deadline:
            time.sleep(0.002)
        while self.hits:
            self._on_hit(self.hits.popleft())

    def _on_hit(self, hit: Hit | None) -> None:
        if self.tee.stopped and not self.said_disk:
            self.said_disk = True
            self.notify(f"{self.tee.stopped}: the capture stops here, the program runs on")
        if hit is not None and self.pending is None:
            self.pending = (hit, time.monotonic() + hit.pattern.wait_s)
            self.notify(f"{hit.stream}: {hit.line} ({hit.pattern.meaning})")

    def _check_signals(self) -> None:
        if self.signals:
            name = signal.Signals(self.signals[0]).name
            self._judge("interrupted", f"tracekit got {name} while the run was on")

    def _check_stall(self, now: float) -> None:
        if self.pending and now >= self.pending[1]:
            hit = self.pending[0]
            count = f"{hit.pattern.times} times " if hit.pattern.times > 1 else ""
            where = f"{hit.stream}.log, byte {hit.byte_offset}"
            self._judge("stalled", f"{hit.pattern.meaning}: {count}{hit.line!r} ({where})")
        limit = self.settings.stall_after_s
        quiet = now - self.tee.last_output_ns / 1e9
        if limit is not None and quiet > limit and any(p.running for p in self.programs):
            last = next((line for p in self.programs if (line := p.last_line())), "")
            self._judge("stalled", f"no output for {quiet:.1f} s (--stall-after){said(last)}")

    def _check_ready(self, now: float) -> None:
        for program in self.programs:
            ready = program.ready.process.ready
            if program.running and not program.is_ready and ready is not None:
                self._check_one(program, ready, now - (program.facts.started_mono_ns or 0) / 1e9)

    def _check_one(self, program: _Program, ready: Ready, age_s: float) -> None:
        if ready.after_s is not None:
            program.is_ready = age_s >= ready.after_s
        elif ready.line is not None:
            program.is_ready = any(o.watch.is_ready for o in program.outputs)
        elif ready.connect is not None:
            program.is_ready = procfs.accepts(ready.connect, 1.0)
        elif ready.port is not None:
            program.is_ready = self._port_is_open(program, ready.port)
        if program.is_ready:
            program.facts.ready_mono_ns = time.monotonic_ns()
            if len(self.programs) > 1:
                self.notify(f"{program.name} is ready after {age_s:.1f} s")
        elif age_s > ready.timeout_s:
            self._judge(
                "blocked",
                f"{program.name} was not ready after {ready.timeout_s:g} s: {ready.awaited}{said(program.last_line())}",
            )

    def _port_is_open(self, program: _Program, port: int) -> bool:
        if not procfs.listens(port):
            return False
        own = guarding.descendants(self.guard.process.pid)
        found = procfs.listener(port, own)
        if found is None or found.pid in own:
            return found is not None
        by = f"{found.command}" + (f" (pid {found.pid})" if found.pid else "")
        self._judge(
            "failed",
            f"{program.name}: port {port} is held by {by}, not by it; choose other ports, or use ready = "
            "{ connect = … } if another machine or container serves it",
        )
        return False

    def _look(self) -> None:
        """Note which files the programs map; ever more rarely."""
        for program in self.programs:
            if program.running and program.pid is not None:
                for pid in (program.pid, *guarding.descendants(program.pid)):
                    program.mapped |= procfs.mapped_files(pid)
        self.next_look = time.monotonic() + self.look_gap
        self.look_gap = min(2 * self.look_gap, _LAST_LOOK_S)

    # -- stop ------------------------------------------------------------------------------------------------------

    def _stop_all(self) -> None:
        """Stop what runs, the main program first; nothing is left when this returns."""
        for program in self.programs:
            for output in program.outputs:
                output.close_program_end()
        if self.lost_guard:
            assert self.verdict is not None
            self.verdict.status = 125
            return
        self._look()
        self.stopping = True
        end = [p for p in self.programs if p.name == self.plan.end]
        others = [p for p in reversed(self.programs) if p.name != self.plan.end]
        if any(p.exited for p in others):  # a worker died: the client will see it, and say so
            self._wait(lambda: not end[0].running, min(LINGER_S, self.settings.grace_s))
        for batch in (end, others):
            self._stop(batch)
        if not self._wait(lambda: self.idle, 0.2 if self.signals else min(LINGER_S, self.settings.grace_s)):
            self._sweep()
        self._set_status(end[0])

    def _stop(self, batch: Sequence[_Program]) -> None:
        interrupted = bool(self.signals) and self.signals[0] == signal.SIGINT
        for program in batch:
            if program.running:
                is_end = program.name == self.plan.end
                number = signal.SIGINT if interrupted and is_end else program.ready.process.stop
                self._signal(program, number)
        grace_s = max([self.settings.grace_s, *(p.ready.process.grace_s or 0 for p in batch if p.running)])
        if self._wait(lambda: not any(p.running for p in batch), grace_s):
            return
        for program in batch:
            if program.running:
                self._signal(program, signal.SIGKILL, tree=True)
        self._wait_dead(lambda: not any(p.running for p in batch))

    def _signal(self, program: _Program, number: signal.Signals, *, tree: bool = False) -> None:
        program.facts.stopped_with = number.name
        self.guard.signal(program.name, number, tree=tree)

    def _sweep(self) -> None:
        """Stop what the programs left behind."""
        left = guarding.descendants(self.guard.process.pid)
        if left:
            names = ", ".join(sorted({procfs.command(pid) for pid in left} - {""}))
            self.notes.append(f"{len(left)} processes were left behind and were stopped ({names})")
        self.guard.signal_all(signal.SIGTERM)
        if self._wait(lambda: self.idle, self.settings.grace_s):
            return
        deadline = time.monotonic() + LINGER_S
        while not self.idle and not self.lost_guard and time.monotonic() < deadline:
            self.guard.signal_all(signal.SIGKILL)
            self._pump(_POLL_S)
        if not self.idle and not self.lost_guard:
            self.notes.append("some processes could not be killed: they hang in the kernel (see dmesg)")

    def _wait_dead(self, until: Callable[[], bool]) -> None:
        """Wait for what was killed, whatever the user does meanwhile."""
        deadline = time.monotonic() + LINGER_S
        while not until() and not self.lost_guard and time.monotonic() < deadline:
            self._pump(_POLL_S)

    def _set_status(self, end: _Program) -> None:
        """Give the verdict its exit status: the main program's own, but never 0 for a run that did not go well."""
        if self.verdict is None:
            self._judge("failed", "the run ended for no known reason")
        assert self.verdict is not None
        status = end.facts.status
        if status is None:
            self.verdict.status = 125
        else:
            self.verdict.status = exit_status(status)
            if status == 0 and self.verdict.name in ("failed", "stalled", "blocked"):
                self.verdict.status = 1

    # -- edges -----------------------------------------------------------------------------------------------------

    def _tell(self, hit: Hit | None) -> None:
        """Take news from the tee's thread."""
        self.hits.append(hit)
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_write, b"\0")

    def _save(self) -> None:
        """Write the manifest as it stands; a disk that has no room for it does not stop the run."""
        try:
            manifest.save(self.record, self.folder)
        except OSError as error:
            self.notify(f"{self.folder / manifest.FILE}: could not be written ({error.strerror}); the logs are whole")

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Take the signals that end a run, and give them back after it."""

        def note(number: int, _frame: FrameType | None) -> None:
            self.signals.append(number)

        self.wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = {number: signal.signal(number, note) for number in _ENDING}
        woken = signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self.wake_read)
            os.close(self.wake_write)


def _facts(one: Prepared, outputs: Sequence[Output]) -> manifest.Process:
    """Return what the manifest says of a process before it has run."""
    logs = [
        manifest.Log(o.log.name, o.log.name.removesuffix(".zst") + ".stamps", which)
        for o, which in zip(outputs, ("stdout", "stderr"), strict=True)
    ]
    return manifest.Process(
        name=one.process.name,
        argv=secrets.kept_arguments(one.process.argv),
        cwd=one.cwd,
        executable=one.path,
        env=secrets.kept_environment(one.env, one.changed),
        unset=list(one.unset),
        timed=one.timed,
        index=one.process.index,
        logs=logs,
        git_commit=host.git_commit(Path(one.path)),
    )
