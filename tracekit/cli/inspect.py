"""``tracekit inspect``: what a program or library is and holds."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tracekit.errors import NothingRecognisedError, TracekitError

if TYPE_CHECKING:
    from tracekit.binary import BinaryReport

_MANY = 40


@click.command("inspect")
@click.argument("file", nargs=-1, required=True)
@click.option(
    "--kernels",
    "pattern",
    metavar="PATTERN",
    help="List the device kernels whose name matches: a part of the name, or a glob with * ? [ ] over all of it.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=_MANY,
    show_default=True,
    metavar="N",
    help="With --kernels, list N kernels of each file, 0 for all. JSON has all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def command(file: Sequence[str], pattern: str | None, limit: int, as_json: bool) -> None:  # noqa: FBT001
    """Tell what a program or library is: build, compiler, libraries, timing hooks, device code.

    Exits with 3 if no FILE is an ELF file or holds device code or a timing hook, with 1 if one is
    damaged (what could be read is printed all the same).

    \b
    Example:
      tracekit inspect build/bin/rpc-server build/bin/libggml-sycl.so
      tracekit inspect libggml-sycl.so --kernels mul_mat_vec_q
      tracekit inspect libggml-sycl.so --json
    """
    from tracekit.binary.report import SCHEMA, report_json
    from tracekit.binary.text import files_text

    reports, errors = _reports(file)
    if as_json:
        files = [report_json(report, pattern) for report in reports]
        click.echo(json.dumps({"schema": SCHEMA, "files": files, "errors": [str(error) for error in errors]}))
    else:
        click.echo(files_text(reports, pattern, limit or None), nl=False)
    for error in errors[:-1]:
        click.echo(f"tracekit: {error}", err=True)
    if errors:
        raise errors[-1]


def _reports(files: Sequence[str]) -> tuple[list["BinaryReport"], list[TracekitError]]:
    """Return a report for each file that can be read, and what is wrong with the others."""
    from tracekit.binary import inspect_file

    reports: list[BinaryReport] = []
    errors: list[TracekitError] = []
    for name in files:
        try:
            report = inspect_file(name)
        except TracekitError as error:
            errors.append(error)
            continue
        reports.append(report)
        if report.faults:
            errors.append(TracekitError(f"{name}: device code could not be read: {report.faults[0]}"))
    if not errors and not any(report.recognised for report in reports):
        errors.append(
            NothingRecognisedError(
                f"{', '.join(files)}: no ELF file, and neither device code nor a timing hook in it; "
                "name a program (rpc-server) or a library (libggml-sycl.so)"
            )
        )
    return reports, errors
