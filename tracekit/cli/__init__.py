"""The command line: the only place that prints or exits. One module per command, each thin.

Heavy imports (polars, perfetto) stand inside the commands, so that ``tracekit --help`` answers at once.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from tracekit import __version__
from tracekit.errors import TracekitError

#: The commands, in the order of ``tracekit --help``: module ``tracekit.cli.<name>`` holds ``command``.
COMMANDS: tuple[str, ...] = (
    "run",
    "top",
    "layers",
    "steps",
    "budget",
    "diff",
    "balance",
    "report",
    "record",
    "convert",
    "open",
    "query",
    "events",
    "inspect",
    "doctor",
    "patch",
    "formats",
    "demo",
)


class Commands(click.Group):
    """The root group: keeps the declared order of commands in ``--help``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the one command that is asked for."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"tracekit.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="tracekit")
def group() -> None:
    """Timing logs of LLM inference on Intel GPUs, as tables and Perfetto traces.

    \b
    Example:
      tracekit top rpc-b70-*.log
      tracekit convert rpc-b70-*.log -o decode.pftrace
    """


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit with the status that the documentation promises."""
    arguments = list(sys.argv[1:] if args is None else args)
    try:
        status = _invoke(arguments)
        if sys.stdout is not None:  # it is where the caller closed it
            sys.stdout.flush()
    except TracekitError as error:
        click.echo(f"tracekit: {error}", err=True)
        status = error.exit_code
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo(err=True)
        status = 130
    except BrokenPipeError:  # the reader (`| head`) has seen enough
        _silence_stdout()
        status = 141
    except OSError as error:
        click.echo(f"tracekit: cannot be written or read ({error.strerror or error})", err=True)
        _silence_stdout()
        status = 1
    sys.exit(status)


def _invoke(arguments: list[str]) -> int:
    # Not `group.main`: it turns a reader that is gone into status 1 before we could say otherwise.
    try:
        with group.make_context("tracekit", arguments) as context:
            status = group.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    return status if isinstance(status, int) else 0


def _silence_stdout() -> None:
    """Keep the interpreter from complaining when it flushes what nobody takes."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
