"""``tracekit run``: capture a run, whole and safe, and know what was run."""

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tracekit.capture import Display, Plan, Preset, Settings
    from tracekit.manifest import Manifest


class Duration(click.ParamType[float]):
    """Seconds: ``90``, ``0.5s``, ``500ms``, ``10m``, ``2h``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", str(value))
        if not match or float(match[1]) == 0:
            self.fail(f"{value!r} is no duration above 0: give 90, 0.5s, 500ms, 10m or 2h", param, ctx)
        return float(match[1]) * {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2] or "s"]


class RunCommand(click.Command):
    """Options end at the program to run, whose own options follow; after a SPEC.toml they go on."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Look at the first word that is no option, then parse."""
        ctx.allow_interspersed_args = False
        words = self.make_parser(ctx).parse_args(list(args))[0].get("command")
        ctx.allow_interspersed_args = isinstance(words, Sequence) and str(words[0]).endswith(".toml")
        return super().parse_args(ctx, args)


@click.command("run", cls=RunCommand)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="SPEC.toml | -- CMD ARG…")
@click.option("-o", "--output", metavar="DIR", help="The capture directory to make; it must not exist.")
@click.option("--stamp", is_flag=True, help="Make a fresh directory, named by the time, below DIR.")
@click.option(
    "--preset", "names", multiple=True, metavar="NAME", help="Switch timing on as this engine wants it (repeatable)."
)
@click.option("--list-presets", is_flag=True, help="List the presets: what each sets, and its caveats.")
@click.option("--json", "as_json", is_flag=True, help="With --list-presets: print JSON.")
@click.option("--env", multiple=True, metavar="K=V", help="Set a variable in every process (repeatable).")
@click.option("--unset", multiple=True, metavar="K", help="Unset a variable in every process (repeatable).")
@click.option("--sync", is_flag=True, help="Wait for the device around each region (vllm-xpu).")
@click.option("--print-every", type=click.IntRange(0), metavar="N", help="Print one of N calls (vllm-xpu).")
@click.option("--skip-first", type=click.IntRange(0), metavar="N", help="Leave out the first N calls (vllm-xpu).")
@click.option("--rank", metavar="R", help="Time this rank only (vllm-xpu).")
@click.option("--preload", metavar="FILE", help="The shim of a preset that needs one (tracekit patch build).")
@click.option("--workers", type=click.IntRange(1, 1024), metavar="N", help="Workers of a topology: one per device.")
@click.option("--model", metavar="M", help="The model of a topology.")
@click.option("--set", "values", multiple=True, metavar="K=V", help="Set a value of a SPEC.toml (repeatable).")
@click.option("--name", metavar="NAME", help="Name of the one process, so of its logs.  [default: the program's]")
@click.option("--cwd", metavar="DIR", help="Working directory of the one process.")
@click.option("--tty", is_flag=True, help="Give programs a terminal, for those that else hold output back.")
@click.option("--zstd", is_flag=True, help="Compress the logs while they are written.")
@click.option("--stall-after", type=Duration(), metavar="T", help="Stop the run after no output for so long.")
@click.option(
    "--stall-pattern",
    multiple=True,
    metavar="TEXT[:N]",
    help="Also stop it when TEXT was printed N times (repeatable).",
)
@click.option("--grace", type=Duration(), default="10s", show_default=True, metavar="T", help="From TERM to KILL.")
@click.option("--sample", type=Duration(), metavar="T", help="Sample GPU power, frequency, temperature so often.")
@click.option("--pair", is_flag=True, help="Run twice, clean and then timed: DIR/clean and DIR/timed.")
@click.option(
    "--show",
    type=click.Choice(["main", "all", "none"]),
    default="main",
    show_default=True,
    help="Whose output to show: of the process that ends the run, of all (by name, on stderr), of none.",
)
@click.option("--no-check", is_flag=True, help="Run programs in which no timing hook is found, too.")
def command(command: Sequence[str], **given: Any) -> int | None:
    """Run a program with timing switched on and keep all that it prints, in a capture directory.

    stdout and stderr of each process go to files of their own, byte for byte, with arrival stamps; manifest.json
    says what was run, with what, on what, and how it ended. A directory is read like a log: tracekit top DIR.
    SPEC.toml names several processes. The status is the program's own; 125 when tracekit itself failed.

    \b
    Example:
      tracekit run --preset ggml-sycl -o cap -- llama-bench -m model.gguf
      tracekit run --preset ggml-rpc --workers 4 --model model.gguf -o cap -- llama-bench -p 512 -n 64
      tracekit top cap
    """
    if given["list_presets"]:
        click.echo(_presets_json() if given["as_json"] else _presets_text())
        return None
    if given["as_json"]:
        raise click.UsageError("--json goes with --list-presets; how a run went stands in its manifest.json")
    if not given["output"]:
        raise click.UsageError("give the capture directory to make: -o DIR")
    _fill_closed_descriptors()
    return _run(tuple(command), given)


def _run(command: tuple[str, ...], given: dict[str, Any]) -> int:
    from tracekit import capture

    plan, chosen = _plan(command, given)
    settings = _settings(command, given)
    folder = Path(given["output"])
    if given["pair"]:
        if not chosen:
            raise click.UsageError("--pair needs a --preset: without one there is nothing to time")
        folder, runs = capture.run_pair(
            plan, folder, settings, chosen, stamp=given["stamp"], new_display=lambda: _display(given), notify=_say
        )
        for run in runs:
            _report(folder / str(run.role), run)
        if len(runs) > 1:
            _say(f"next: tracekit budget {folder}")
        else:
            _say("the timed run is left out, since the clean one did not end well")
        return _status(runs[-1])
    folder, done = capture.run(
        plan, folder, settings, chosen, stamp=given["stamp"], display=_display(given), notify=_say
    )
    _report(folder, done)
    return _status(done)


def _plan(command: tuple[str, ...], given: dict[str, Any]) -> tuple["Plan", list["Preset"]]:
    """Return what to run: a topology if a preset or a file names one, else the one command."""
    from tracekit.capture import read_spec, single, spec
    from tracekit.capture.presets import preset

    topologies = [name for name in given["names"] if name in spec.SHIPPED]
    names = [name for name in given["names"] if name not in topologies]
    is_file = len(command) >= 1 and command[0].endswith(".toml")
    if not command and not topologies:
        raise click.UsageError("give the program to run after --, or a SPEC.toml")
    if topologies or is_file:
        for option in ("name", "cwd"):
            if given[option]:
                raise click.UsageError(f"--{option} is for one program; a topology names its own")
        if len(topologies) > 1 or (topologies and is_file):
            raise click.UsageError("give one topology: a preset or a SPEC.toml")
        path = Path(command[0]) if is_file else spec.shipped(topologies[0])
        words = command[1:] if is_file else command
        plan = read_spec(path, words[1:] if words[:1] == ("--",) else words, _values(given))
        return plan, [preset(name) for name in names or plan.presets]
    for option in ("workers", "model", "values"):
        if given[option]:
            flag = "--set" if option == "values" else f"--{option}"
            raise click.UsageError(f"{flag} is for topologies ({', '.join(spec.SHIPPED)}, or a SPEC.toml)")
    return single(command, given["name"], cwd=given["cwd"]), [preset(name) for name in names]


def _values(given: dict[str, Any]) -> dict[str, str]:
    values = dict(_pair("--set", text) for text in given["values"])
    for option in ("workers", "model"):
        if given[option] is not None:
            values[option] = str(given[option])
    return values


def _pair(option: str, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.UsageError(f"{option} {text}: expected K=V")
    return key, value


def _settings(command: tuple[str, ...], given: dict[str, Any]) -> "Settings":
    from tracekit.capture import Settings

    options = {"sync": "1"} if given["sync"] else {}
    options |= {o: str(given[o]) for o in ("print_every", "skip_first", "rank") if given[o] is not None}
    if options and not given["names"]:
        raise click.UsageError("--sync, --print-every, --skip-first and --rank need a --preset")
    return Settings(
        env=dict(_pair("--env", text) for text in given["env"]),
        unset=given["unset"],
        options=options,
        tty=given["tty"],
        zstd=given["zstd"],
        stall_after_s=given["stall_after"],
        stall_patterns=given["stall_pattern"],
        grace_s=given["grace"],
        preload=given["preload"],
        sample_s=given["sample"],
        show=given["show"],
        check=not given["no_check"],
        stdin=_stdin(),
        command=sys.argv[1:] if sys.argv[1:2] == ["run"] else ["run", *command],
    )


def _stdin() -> int | None:
    """Return what a program may read: a pipe or file; a terminal belongs to tracekit (Ctrl-C)."""
    return None if os.isatty(0) else 0


def _display(given: dict[str, Any]) -> "Display | None":
    from tracekit.capture import Display

    return None if given["show"] == "none" else Display(1, 2)


def _fill_closed_descriptors() -> None:
    """Open what is closed of stdin, stdout, stderr: else a log would get that number, and be written on as it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)  # noqa: FBT003
    os.close(fd)


def _say(text: str) -> None:
    try:
        click.echo(f"tracekit: {text}", err=True)
    except OSError:  # nobody listens
        return


def _report(folder: Path, run: "Manifest") -> None:
    """Say in a few lines how it went and what to do next."""
    outcome = run.outcome
    assert outcome is not None
    assert run.ended is not None
    logs = [log for process in run.processes for log in process.logs]
    seconds = (run.ended.mono_ns - run.started.mono_ns) / 1e9
    size = sum(log.bytes or 0 for log in logs)
    timing = run.timing_lines
    evidence = f": {outcome.evidence}" if outcome.name != "ok" else ""
    _say(f"{outcome.name} after {seconds:.1f} s{evidence}")
    lost = sum(log.uncaptured_bytes for log in logs)
    if run.capture.stopped:
        _say(f"the capture is not whole: {run.capture.stopped}; {lost:,} bytes that came later are not in it")
    if run.capture.not_shown_bytes:
        _say(f"{run.capture.not_shown_bytes:,} bytes were not shown (slow terminal); the capture has them")
    for note in outcome.notes:
        _say(note)
    counted = f", {timing:,} timing lines" if run.presets else ""
    timed = "; diagnostic: not throughput" if run.timed else ""
    _say(f"{folder}: {len(logs)} logs, {size:,} bytes{counted}{timed}")
    if timing:
        _say(f"next: tracekit top {folder}")


def _status(run: "Manifest") -> int:
    return run.outcome.status if run.outcome is not None else 125


def _presets_json() -> str:
    from dataclasses import asdict

    from tracekit.capture import spec
    from tracekit.capture.presets import presets

    rows = [asdict(preset) for preset in presets()]
    return json.dumps({"presets": rows, "topologies": [_topology(name) for name in spec.SHIPPED]})


def _topology(name: str) -> dict[str, Any]:
    import tomllib

    from tracekit.capture import spec

    content = tomllib.loads(spec.shipped(name).read_text(encoding="utf-8"))
    return {"name": name, **{key: content.get(key) for key in ("summary", "topology", "preset", "values")}}


def _presets_text() -> str:
    from tracekit.capture import spec
    from tracekit.capture.presets import presets

    lines = []
    for preset in presets():
        lines += [f"{preset.name}: {preset.summary}", "  sets"]
        lines += [f"    {name}={value}" for name, value in preset.env.items()]
        if preset.options:
            lines.append("  options")
        for option, variables in preset.options.items():
            flag = "--" + option.replace("_", "-")
            lines.append(f"    {flag:<14}" + " ".join(f"{k}={v}" for k, v in variables.items()))
        lines += ["  caveats", *(f"    - {text}" for text in preset.caveats), ""]
    for name in spec.SHIPPED:
        row = _topology(name)
        lines += [
            f"{name}: {row['summary']}",
            f"  a topology ({row['topology']}) that sets {row['preset']}",
            "  values",
        ]
        lines += [f"    --set {key}={value}" for key, value in row["values"].items()]
        lines.append("")
    return "\n".join(lines).rstrip()
