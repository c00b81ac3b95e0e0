"""Shared by all tests: the option for tests with real engines, where the samples are, how the command is run."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent.parent

# No example is held to a time: a busy machine proves nothing.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--engines", action="store_true", help="also run the tests that need a real engine installed")
    parser.addoption("--update-golden", action="store_true", help="write the golden answers beside the samples")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unseen = pytest.mark.skip(reason="needs headless Chromium: name it in TRACEKIT_CHROMIUM, see docs/testing.md")
    for item in items:
        if "browser" in item.keywords and not os.environ.get("TRACEKIT_CHROMIUM"):
            item.add_marker(unseen)
    if config.getoption("--engines"):
        return
    skip = pytest.mark.skip(reason="needs a real engine (a big install): run with --engines, see docs/testing.md")
    for item in items:
        if "engine" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def samples() -> Path:
    return ROOT / "samples"


Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def tracekit() -> Command:
    """Run the installed command as a user does: a process of its own, its streams apart."""

    def run(
        *args: str | Path, stdin: bytes | None = None, cwd: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [sys.executable, "-m", "tracekit", *map(str, args)],
            input=stdin,
            capture_output=True,
            cwd=cwd,
            timeout=100,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        )

    return run
