"""Binaries: which file it is, what it needs, which timing hooks and which device code it holds."""

from tracekit.binary.elf import DamagedError
from tracekit.binary.hooks import find_hook, missing_hook
from tracekit.binary.identify import Identity, identify
from tracekit.binary.report import BinaryReport, inspect_file

__all__ = ["BinaryReport", "DamagedError", "Identity", "find_hook", "identify", "inspect_file", "missing_hook"]
