"""Files that appear whole or not at all: written beside their place, then renamed into it."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tracekit.errors import OutputError


@contextmanager
def written_beside(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends without an error; else nothing changes.

    Raises:
        OutputError: it cannot be written.
    """
    if path.is_dir():
        raise OutputError(f"{path}: is a directory; give the name of a file in it")
    if path.exists() and not path.is_file():  # a pipe or a device is written, never replaced
        with path.open("wb") as file:
            yield file
        return
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}); give another place with -o") from error
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        beside.chmod(0o666 & ~_umask())
        beside.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        beside.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
