"""The docs are true: what they show runs, what is generated is current, what they link to is there."""

import doctest
import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import tracekit
from tracekit import cli
from tracekit.cli import COMMANDS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def shell_commands() -> list[str]:
    """Return the commands of the README that use tracekit itself, in order."""
    lines = "\n".join(blocks(ROOT / "README.md", "bash")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("tracekit ")]


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Give a directory that has the samples and nothing else, as the README's commands expect."""
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    return tmp_path


def test_the_readmes_commands_run(desk: Path) -> None:
    commands = shell_commands()
    assert len(commands) > 5
    for command in commands:
        argv = [sys.executable, "-m", *shlex.split(command, comments=True)]
        done = subprocess.run(
            argv, cwd=desk, capture_output=True, text=True, timeout=100, check=False, env=environment()
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_the_readmes_python_runs(desk: Path) -> None:
    (code,) = blocks(ROOT / "README.md", "python")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=desk,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert (desk / "rpc.pftrace").stat().st_size > 0


def run_block(language: str, code: str, desk: Path) -> str:
    """Run what a block shows, and return what it prints to standard output."""
    if language == "python":
        programs = [["-c", code]]
    else:
        commands = code.replace("\\\n", " ").splitlines()
        assert all(line.startswith("tracekit ") for line in commands), code
        programs = [["-m", *shlex.split(line)] for line in commands]
    printed = ""
    for words in programs:
        argv = [sys.executable, *words]
        done = subprocess.run(
            argv, cwd=desk, capture_output=True, text=True, timeout=100, check=False, env=environment()
        )
        assert done.returncode == 0, f"{words}\n{done.stderr}"
        printed += done.stdout
    return printed


def test_the_tutorial_runs_from_top_to_bottom(desk: Path) -> None:
    """Each block runs where the one before left off, and prints the lines that are shown behind it, in that order."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert {language for language, _ in found} == {"bash", "python", "text"}
    printed: list[str] = []
    for language, code in found:
        if language == "text":
            rest = iter(printed)
            for line in code.splitlines():
                assert line == "..." or line in rest, f"not printed, or not in this order: {line}"
        else:
            printed = run_block(language, code, desk).splitlines()
    assert (desk / "kqv-offload.html").stat().st_size > 10_000


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_generated_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http", "mailto")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_of_the_docs_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        assert f"docs/{page.name}" in readme, page.name


def modules() -> Iterator[str]:
    for info in pkgutil.walk_packages(tracekit.__path__, "tracekit."):
        if not info.name.endswith("__main__"):
            yield info.name


@pytest.mark.parametrize("name", ["tracekit", *modules()])
def test_doctests(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def every_command() -> Iterator[tuple[str, click.Command]]:
    root = click.Context(cli.group)
    for name in COMMANDS:
        command = cli.group.get_command(root, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            for below in command.list_commands(root):
                sub = command.get_command(root, below)
                assert sub is not None
                yield f"{name} {below}", sub


@pytest.mark.parametrize(("name", "command"), list(every_command()), ids=lambda x: x if isinstance(x, str) else "")
def test_every_option_has_help_and_every_command_an_example(name: str, command: click.Command) -> None:
    assert command.help
    assert "Example:" in command.help, f"{name} shows no example"
    assert f"tracekit {name}" in command.help
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"{name}: {option.name} has no help"


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, tracekit.cli as c\ntry: c.main(['--help'])\nexcept SystemExit: pass\n"
    code += "sys.exit(','.join({'polars', 'numpy', 'perfetto', 'elftools'} & set(sys.modules)) or None)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert "Usage: tracekit" in done.stdout
