"""The capture directory: made fresh, never written into twice."""

import os
import shutil
import time
from pathlib import Path

from tracekit.capture.errors import CaptureError

#: Space that is set aside at the start, so that the manifest can be completed on a disk that the logs filled.
RESERVE = ".reserve"
RESERVE_BYTES = 1 << 20


def make(path: str | Path, *, stamp: bool = False) -> Path:
    """Make the directory of a capture and return it.

    Args:
        path: the directory; it must not exist.
        stamp: make a directory named by the time of day below `path` instead, which may exist.

    Raises:
        CaptureError: it exists, or cannot be made or written in.
    """
    folder = Path(path)
    if stamp:
        folder = _free(folder / time.strftime("%Y%m%d-%H%M%S"))
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise CaptureError(
            f"{folder}: exists already; a capture is never mixed with another: give a new directory, "
            "or --stamp for a fresh one below it"
        ) from error
    except OSError as error:
        raise CaptureError(f"{folder}: cannot be made ({error.strerror}); choose another place with -o") from error
    return folder


def _free(folder: Path) -> Path:
    """Return the path, or the first numbered one that does not exist."""
    tried, number = folder, 1
    while tried.exists():
        number += 1
        tried = folder.with_name(f"{folder.name}-{number}")
    return tried


def reserve(folder: Path) -> None:
    """Set space aside; where that fails there is nothing to set aside."""
    try:
        fd = os.open(folder / RESERVE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CaptureError(f"{folder}: cannot be written in ({error.strerror}); choose another with -o") from error
    try:
        os.posix_fallocate(fd, 0, RESERVE_BYTES)
    except OSError:
        os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def discard(folder: Path) -> None:
    """Remove the directory of a capture that never began; what cannot be removed stays."""
    shutil.rmtree(folder, ignore_errors=True)


def release(folder: Path) -> None:
    """Give the space back."""
    (folder / RESERVE).unlink(missing_ok=True)
