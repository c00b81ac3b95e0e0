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
    try:
        status = group.main(args=args, prog_name="tracekit", standalone_mode=False)
    except TracekitError as error:
        click.echo(f"tracekit: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; the interpreter must not complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    sys.exit(status if isinstance(status, int) else 0)
