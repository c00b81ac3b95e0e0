"""Builds the preload shim for ggml with the user's compiler."""

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tracekit.errors import OutputError, TracekitError, UsageError
from tracekit.patching import find

#: Looked for in this order when neither --cc nor CC names one.
COMPILERS = ("cc", "gcc", "clang", "icx")

_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread")


@dataclass(frozen=True, slots=True)
class Built:
    """A shim that was built.

    Attributes:
        path: the library.
        command: what was run.
        warnings: what the compiler said.
    """

    path: Path
    command: tuple[str, ...]
    warnings: str


def build_shim(output: Path, *, ggml_include: Path | None = None, compiler: str | None = None) -> Built:
    """Compile the shim into a shared library.

    Args:
        output: the library to write.
        ggml_include: directory with the ``ggml.h`` of the program to time; the layout of its tensors is taken from
            there. Without it the layout common to all ggml versions is assumed. Either is verified when it runs.
        compiler: a C compiler and its options; else ``CC``, else the first of `COMPILERS` on the path.

    Raises:
        UsageError: no ``ggml.h`` in `ggml_include`, or no compiler.
        OutputError: the output's directory is not there.
        TracekitError: the compiler failed; the message holds what it said.
    """
    if ggml_include is not None and not (ggml_include / "ggml.h").is_file():
        raise UsageError(f"{ggml_include}: no ggml.h in it; name the directory, often ggml/include of the source tree")
    if not output.parent.is_dir():
        raise OutputError(f"{output}: {output.parent} is not a directory")
    source = find("ggml-shim").source
    assert source is not None
    header = ("-DTRACEKIT_GGML_HEADER", f"-I{ggml_include}") if ggml_include is not None else ()
    with resources.as_file(source) as file:
        command = (*_compiler(compiler), *_FLAGS, *header, "-o", str(output), str(file), "-ldl")
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TracekitError(f"{command[0]}: the compiler could not be run: {error}") from error
    if done.returncode:
        raise TracekitError(f"{shlex.join(command)} failed:\n{done.stderr.strip()}")
    return Built(output, command, done.stderr.strip())


def _compiler(named: str | None) -> list[str]:
    """Return the compiler to run, with its options."""
    words = shlex.split(named or os.environ.get("CC", ""))
    if not words:
        words = [name for name in COMPILERS if shutil.which(name)][:1]
    if not words:
        raise UsageError(
            f"no C compiler: none of {', '.join(COMPILERS)} is on the path; install one or name it by --cc"
        )
    if not shutil.which(words[0]):
        raise UsageError(f"{words[0]}: no such C compiler")
    return words
