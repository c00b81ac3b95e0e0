"""Outputs that are whole or not there: written beside their place, then renamed."""

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tracekit.errors import OutputError, UsageError


def refuse_input(target: str | Path | None, inputs: Iterable[str]) -> None:
    """Refuse to write over what is read.

    Raises:
        UsageError: the output is one of the inputs.
    """
    if target is None or str(target) == "-" or not Path(target).exists():
        return
    for path in inputs:
        if Path(path).exists() and Path(target).samefile(path):
            raise UsageError(f"{target}: is the log that is read; name another output")


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Give a temporary path in the same directory; it takes the place of `path` if nothing is raised.

    Raises:
        OutputError: the directory cannot be written to, or the disk is full.
    """
    target = Path(path)
    try:
        if target.exists() and not target.is_file():
            # A device or a pipe (/dev/stdout) is written to as it is.
            if target.is_dir():
                raise OutputError(f"{target}: is a directory; name a file in it")
            yield target
            return
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
        beside = Path(name)
        try:
            yield beside
            mask = os.umask(0)
            os.umask(mask)
            beside.chmod(0o666 & ~mask)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"{target}: cannot be written ({error.strerror or error}); check the path and the space"
        ) from error
