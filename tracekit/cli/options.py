"""What commands share: their logs, their filters, where results go, the progress bar, the ledger on stderr."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tracekit.errors import CoverageError, UsageError

if TYPE_CHECKING:
    from tracekit.captured import Captured
    from tracekit.reading import Run

F = TypeVar("F", bound=Callable[..., Any])

#: Where --moe-layers is kept.
_MOE_LAYERS = "tracekit.moe_layers"

#: Work on less than this is over before a progress bar would be read.
_PROGRESS_BYTES = 64 << 20


def logs(function: F) -> F:
    """Add the arguments of every command that reads logs."""
    decorators = [
        click.argument("log", nargs=-1, required=True),
        click.option(
            "--worker",
            "workers",
            multiple=True,
            metavar="NAME=PATH",
            help="Call the process behind the log PATH by this NAME (default: the file's name). Repeatable.",
        ),
        moe_layers,
        click.option("--strict", is_flag=True, help="Exit with 4 if the coverage has faults (lost or refused lines)."),
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def moe_layers(function: F) -> F:
    """Add --moe-layers, which `open_run` takes."""
    return click.option(
        "--moe-layers",
        type=click.IntRange(min=2),
        metavar="N",
        expose_value=False,
        callback=_remember_layers,
        help="How many layers have experts: llm-scaler's kernels are then counted into steps and layers.",
    )(function)


def _remember_layers(context: click.Context, _option: click.Parameter, value: int | None) -> None:
    """Keep --moe-layers for `open_run`: no command has another use for it."""
    context.meta[_MOE_LAYERS] = value


def rows_shown(many: int, what: str = "rows a table") -> Callable[[F], F]:
    """Add --limit: see `rows_limit`."""
    return click.option(
        "--limit",
        type=click.IntRange(min=0),
        metavar="N",
        help=f"Show N {what}, 0 for all (default: {many} in tables for people, all in the other formats).",
    )


def rows_limit(limit: int | None, form: str, many: int) -> int | None:
    """Return how many rows are shown, None for all."""
    if limit is None and form in ("table", "markdown"):
        limit = many
    return limit or None


def topology(pipeline: str, parallel: str) -> Callable[[F], F]:
    """Add --topology; what each of the two means for the numbers of this command is told."""
    return click.option(
        "--topology",
        type=click.Choice(["pipeline", "parallel"]),
        help=f"How workers share a step: pipeline ({pipeline}; default for ggml) or parallel ({parallel}). "
        "A capture says it by itself.",
    )


def speed(function: F) -> F:
    """Add --tok-s and --bench: see `throughput`."""
    decorators = [
        click.option(
            "--tok-s",
            type=float,
            metavar="X",
            help="Tokens per second of a run of the same work: of all steps that were selected (--phase decode for "
            "decoding).",
        ),
        click.option(
            "--bench",
            metavar="FILE",
            help="Take the tokens per second of decoding, so decode steps only, from what llama-bench (-o json|jsonl) "
            "or vllm bench (its JSON file) wrote.",
        ),
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def columns(text: str) -> list[str]:
    """Return the columns that ``--by A,B`` names."""
    return [c.strip() for c in text.split(",") if c.strip()]


def filters(function: F) -> F:
    """Add --where."""
    return click.option(
        "--where",
        multiple=True,
        metavar="COLUMN=VALUE",
        help="Keep only rows where it holds, as in worker=rpc-b70-1 or op='MUL*'; commas mean or. Repeatable: and.",
    )(function)


def selection(function: F) -> F:
    """Add --phase, --steps and --skip-steps."""
    decorators = [
        click.option(
            "--phase",
            type=click.Choice(["prefill", "decode", "mixed"]),
            help="Keep only the steps of this phase (steps whose phase is not known are left out).",
        ),
        click.option(
            "--steps",
            "chosen",
            metavar="A:B",
            help="Keep only steps A up to and without B of each worker and run, as in 10:20, 10: or :20.",
        ),
        click.option(
            "--skip-steps",
            "skip",
            type=click.IntRange(min=0),
            default=0,
            metavar="N",
            help="Leave out the first N steps of each worker and run (warm-up).",
        ),
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def ledger(function: F) -> F:
    """Add --ledger."""
    return click.option(
        "--ledger",
        type=click.Choice(["text", "json", "none"]),
        default="text",
        show_default=True,
        help="How the coverage ledger (what was read, refused, lost) is told on standard error.",
    )(function)


def output(formats: Sequence[str]) -> Callable[[F], F]:
    """Add --format, --output and --ledger."""

    def add(function: F) -> F:
        decorators = [
            click.option(
                "--format",
                "form",
                type=click.Choice(list(formats)),
                default=formats[0],
                show_default=True,
                help="How the result is written.",
            ),
            click.option(
                "-o",
                "--output",
                "target",
                metavar="FILE",
                help="Write to FILE instead of standard output; it is replaced only once the result is whole.",
            ),
            ledger,
        ]
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add


def open_run(
    log: Sequence[str],
    workers: Sequence[str],
    target: str | None,
    *,
    phase: str | None = None,
    chosen: str | None = None,
    skip: int = 0,
    beside: Sequence[str | None] = (),
) -> "Run":
    """Open the logs, with a progress bar on standard error for long work on a terminal.

    Args:
        beside: other files that the command reads, None where one was not given.

    Raises:
        UsageError: a path that does not exist, or an output (`target`) that is one of the logs or of the files beside.
    """
    from tracekit import source
    from tracekit.reading import Selection, read
    from tracekit.writing import refuse_input

    run = read(log, workers=workers, moe_layers=click.get_current_context().meta.get(_MOE_LAYERS))
    refuse_input(target, [*(s.path for s in run.streams), *(path for path in beside if path)])
    run.selection = Selection.parse(phase, chosen, skip)
    if sum(source.size(s) for s in run.streams) > _PROGRESS_BYTES:
        run.progress = bar("reading")
    return run


def throughput(tok_s: float | None, bench: str | None, phase: str | None) -> float | None:
    """Return the tokens per second that were given, or that a benchmark's file tells.

    Raises:
        UsageError: both were given, what was given is no throughput, or a benchmark's is to be set against prefill.
    """
    from tracekit.bench import decode_tok_s

    if tok_s is not None and bench is not None:
        raise UsageError("--tok-s and --bench are two answers to one question; give one")
    if tok_s is not None and not 1e-6 <= tok_s <= 1e9:
        raise UsageError(f"--tok-s {tok_s}: expected tokens per second, as in 37.136")
    if bench is not None and not _decodes(phase):
        raise UsageError(f"--bench takes a throughput of decoding, which --phase {phase} has none of; give --tok-s")
    return decode_tok_s(bench) if bench is not None else tok_s


def clean_speed(captures: "Sequence[Captured]", phase: str | None) -> float | None:
    """Return the throughput of decoding of a pair's clean run, and say where it stands, or why it is not known."""
    from tracekit.errors import TracekitError
    from tracekit.pairs import clean_tok_s

    if not _decodes(phase):
        return None
    try:
        found = clean_tok_s(captures)
    except TracekitError as error:
        click.echo(f"note: no throughput of the pair's clean run: {error}", err=True)
        return None
    if found is None:
        return None
    click.echo(f"note: {found[0]:.6g} tokens per second of decoding by the clean run, {found[1]}", err=True)
    return found[0]


def _decodes(phase: str | None) -> bool:
    """Whether a throughput of decoding can be set against the steps that --phase leaves."""
    return phase in (None, "decode")


def bar(label: str) -> Callable[[int, int], None] | None:
    """Return what shows progress (done, all there is) on standard error; None where that is no terminal."""
    if not sys.stderr.isatty():
        return None
    shown: Any = None

    def show(done: int, total: int) -> None:
        nonlocal shown
        if shown is None:
            shown = click.progressbar(length=total, label=label, file=sys.stderr)
        shown.update(max(0, done - shown.pos))
        if done >= total:
            shown.render_finish()
            shown = None

    return show


def deliver(result: str | bytes, target: str | None) -> None:
    """Write a result to a file, whole or not at all, or to standard output."""
    from tracekit.writing import whole_file

    data = result if isinstance(result, bytes) else result.encode("utf-8", "replace")
    if target is None:
        stdout = sys.stdout.buffer
        stdout.write(data)
        stdout.flush()
        return
    with whole_file(target) as path:
        path.write_bytes(data)


def say_if_empty(empty: bool) -> None:  # noqa: FBT001 (a fact, not a switch)
    """Say on standard error that filters left nothing, so that silence is not taken for an answer."""
    if empty:
        click.echo(
            "note: no row is left: nothing matches --where, --phase, --steps and --skip-steps together", err=True
        )


def tell_ledger(run: "Run", how: str, *, strict: bool) -> None:
    """Tell what was read on standard error.

    Raises:
        NothingRecognisedError: no record at all was found.
        CoverageError: `strict`, and there are faults.
    """
    from tracekit.table import ledger_of

    run.require_records()
    tell(ledger_of(run), how, strict=strict)


def tell(found: Mapping[str, Any], how: str, *, strict: bool) -> None:
    """Tell a ledger on standard error.

    Raises:
        CoverageError: `strict`, and there are faults.
    """
    from tracekit.table import ledger_text

    if how == "json":
        click.echo(json.dumps(found), err=True)
    elif how == "text":
        click.echo(ledger_text(found), err=True, nl=False)
    if strict and found["faults"]:
        codes = ", ".join(sorted({f["code"] for f in found["faults"]}))
        raise CoverageError(f"--strict: the coverage has {len(found['faults'])} faults ({codes})")
