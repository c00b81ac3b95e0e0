"""Binaries: which file it is, what it needs, which timing hooks and which device code it holds."""

from tracekit.binary.identify import Identity, identify

__all__ = ["Identity", "identify"]
