"""Writes the pages of the docs that follow from the code: the command line, the dialects, the frames.

``python docs/generate.py`` writes them, ``--check`` only says whether they are true.
"""

import sys
from pathlib import Path

import click

from tracekit import bench, cli, frame
from tracekit.cli import COMMANDS
from tracekit.formats import describe

HERE = Path(__file__).parent
NOTE = "<!-- Written by docs/generate.py: change the code and run it. -->\n"


def command_page() -> str:
    """Return the reference of the command line: each command's own --help."""
    parts = ["# The command line\n", NOTE]
    root = click.Context(cli.group, info_name="tracekit", max_content_width=100, terminal_width=100)
    parts.append(_help(cli.group, root))
    for name in COMMANDS:
        command = cli.group.get_command(root, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=root, max_content_width=100, terminal_width=100)
        parts += [f"## tracekit {name}\n", _help(command, context)]
        if isinstance(command, click.Group):
            for below in command.list_commands(context):
                sub = command.get_command(context, below)
                assert sub is not None
                inner = click.Context(sub, info_name=below, parent=context, max_content_width=100, terminal_width=100)
                parts += [f"### tracekit {name} {below}\n", _help(sub, inner)]
    return "\n".join(parts)


def _help(command: click.Command, context: click.Context) -> str:
    return f"```text\n{command.get_help(context)}\n```\n"


def dialect_page() -> str:
    """Return the grammars of the dialects, from their modules."""
    parts = ["# The dialects\n", NOTE]
    for dialect in describe():
        parts += [
            f"## {dialect['name']}\n",
            f"Family {dialect['family']}, {dialect['kind']}s, clock {dialect['clock']}.",
            f"Switched on by {dialect['switch']}.\n",
            f"```text\n{dialect['sample']}\n```\n",
            dialect["grammar"] + "\n",
        ]
    return "\n".join(parts)


def frame_page() -> str:
    """Return the columns of every frame."""
    parts = ["# The frames\n", NOTE]
    parts.append(
        "Durations are integer nanoseconds. Null means not known: nothing is invented. Repeating text is Categorical:\n"
        "cast it to String before you search in it.\n"
    )
    pages = {
        "events": ("One row per timed occurrence, in printed order within a stream.", frame.EVENT_COLUMNS),
        "summaries": ("Rows that were printed as aggregates.", frame.SUMMARY_COLUMNS),
        "steps": ("One row per model pass or engine step.", frame.STEP_COLUMNS),
        "rejects": ("Records that opened with a marker and could not be read.", frame.REJECT_COLUMNS),
        "coverage": ("What was read, per stream and dialect.", frame.COVERAGE_COLUMNS),
        "findings": ("Faults (something is lost or disagrees) and notes.", frame.FINDING_COLUMNS),
        "benchmarks": (
            "Results of llama-bench and vLLM's benchmarks: `tracekit.bench.read_bench(FILE)`.",
            bench.BENCH_COLUMNS,
        ),
        "collectives": (
            "All-reduces that a probe timed alone: `tracekit.bench.read_collectives(FILE)`.",
            bench.COLLECTIVE_COLUMNS,
        ),
    }
    for name, (text, columns) in pages.items():
        parts += [f"## {name}\n", f"{text}\n", "| column | type | meaning |", "|---|---|---|"]
        parts += [f"| {column} | {dtype} | {meaning} |" for column, dtype, meaning in columns]
        parts.append("")
    return "\n".join(parts)


PAGES = {"cli.md": command_page, "dialects.md": dialect_page, "frames.md": frame_page}


def main() -> None:
    """Write or check the pages."""
    stale = []
    for name, page in PAGES.items():
        text, file = page(), HERE / name
        if "--check" in sys.argv:
            if not file.exists() or file.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            file.write_text(text, encoding="utf-8")
    if stale:
        sys.exit(f"not true any more: {', '.join(stale)}; run python docs/generate.py")


if __name__ == "__main__":
    main()
