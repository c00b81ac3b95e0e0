"""The Python API: names stay functions, whatever was imported before."""

import subprocess
import sys
from pathlib import Path

import tracekit as tk

ROOT = Path(__file__).parent.parent


def test_every_name_is_there() -> None:
    for name in tk.__all__:
        assert getattr(tk, name) is not None


def test_no_module_hides_a_name_of_the_api() -> None:
    """A submodule of the same name would take the place of the function once anything imports it."""
    code = (
        "import importlib, pkgutil, tracekit as tk\n"
        "for info in pkgutil.walk_packages(tk.__path__, 'tracekit.'):\n"
        "    if not info.name.endswith('__main__'): importlib.import_module(info.name)\n"
        "hidden = [n for n in tk.__all__ if type(getattr(tk, n)).__name__ == 'module']\n"
        "assert not hidden, hidden\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
