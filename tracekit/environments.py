"""Python environments on disk: what is installed in them, and where their packages are. Nothing in them is run."""

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import unquote, urlparse

#: Distributions of the engines and of what they run on.
DISTRIBUTIONS = (
    "vllm*", "torch", "custom*esimd*", "llm*scaler*", "triton-xpu", "pytorch-triton-xpu", "intel-extension-for-pytorch",
    "oneccl-bind-pt", "intel-sycl-rt", "dpcpp-cpp-rt", "ik-llama*", "llama-cpp*", "cyllama*",
)  # fmt: skip

#: Entry points by which packages are loaded into vLLM.
PLUGINS = "vllm.general_plugins"

#: More files than the packages of an engine have; larger files than their modules are.
_MAX_FILES = 50_000


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python environment: its prefix, its package directories, the distributions that matter here."""

    prefix: Path
    sites: tuple[Path, ...]
    packages: Mapping[str, str]


def environments(variables: Mapping[str, str], own: Path | None = None) -> tuple[Environment, ...]:
    """Return the Python environments in reach, the active one first, each once.

    Looked at are VIRTUAL_ENV, CONDA_PREFIX, the interpreters behind ``vllm`` and ``python3`` on the PATH, and the one
    that runs tracekit.

    Args:
        variables: the environment variables.
        own: the prefix of the Python that runs tracekit; ``sys.prefix`` by default.
    """
    prefixes = [Path(variables[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if variables.get(name)]
    script = shutil.which("vllm", path=variables.get("PATH", ""))
    if script and (interpreter := interpreter_of(Path(script))):
        prefixes.append(interpreter.parent.parent)
    python = shutil.which("python3", path=variables.get("PATH", ""))
    if python:
        prefixes.append(_prefix(Path(python)))
    prefixes.append(Path(sys.prefix) if own is None else own)
    found = {prefix: sites(prefix) for prefix in dict.fromkeys(prefixes)}
    return tuple(Environment(p, s, _packages(s)) for p, s in found.items() if s)


def interpreter_of(script: Path) -> Path | None:
    """Return the interpreter that a script names in its first line; None where it names none by its path."""
    try:
        with script.open("rb") as file:
            first = file.readline(512)
    except OSError:
        return None
    words = first[2:].split() if first.startswith(b"#!") else []
    if not words or b"python" not in words[0]:
        return None
    return Path(words[0].decode("utf-8", "replace"))


def _prefix(python: Path) -> Path:
    """Return the prefix of an interpreter: its own where that is a virtual environment, else its target's."""
    if (python.parent.parent / "pyvenv.cfg").exists():
        return python.parent.parent
    return python.resolve().parent.parent


def sites(prefix: Path) -> tuple[Path, ...]:
    """Return the package directories below a prefix."""
    patterns = ["lib/python3*/site-packages", "lib64/python3*/site-packages"]
    if not (prefix / "pyvenv.cfg").exists():
        patterns += ["lib/python3*/dist-packages", "local/lib/python3*/dist-packages"]
    found = [path for pattern in patterns for path in sorted(prefix.glob(pattern)) if path.is_dir()]
    return tuple({path.resolve(): path for path in reversed(found)}.values())[::-1]


def _packages(paths: Iterable[Path]) -> dict[str, str]:
    found: dict[str, str] = {}
    for distribution in distributions(path=[str(p) for p in paths]):
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if any(fnmatchcase(name, pattern) for pattern in DISTRIBUTIONS):
            found.setdefault(name, distribution.version)
    return dict(sorted(found.items()))


def package_files(environment: Environment, prefixes: Iterable[str], suffix: str) -> Iterator[Path]:
    """Yield the files of an environment that belong to packages whose name begins with one of `prefixes`.

    Editable installs and, for vLLM, the packages that register as its plugins are included.

    Args:
        environment: where to look.
        prefixes: of the names of files and folders in the package directories.
        suffix: of the files: ``.py`` or ``.so``.
    """
    names = tuple(prefixes)
    plugins = tuple(_plugins(environment)) if "vllm" in names else ()
    count = 0
    for folder in (*environment.sites, *_editable(environment, names)):
        for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
            if not entry.name.startswith(names) and entry.name.removesuffix(".py") not in plugins:
                continue
            for path in [entry] if entry.is_file() else entry.rglob(f"*{suffix}"):
                if path.name.endswith(suffix):
                    yield path
                    count += 1
                if count == _MAX_FILES:
                    return


def _plugins(environment: Environment) -> Iterator[str]:
    """Yield the top-level modules of packages that vLLM loads at start."""
    for distribution in distributions(path=[str(s) for s in environment.sites]):
        for entry in distribution.entry_points:
            if entry.group == PLUGINS:
                yield entry.value.partition(":")[0].partition(".")[0]


def _editable(environment: Environment, names: tuple[str, ...]) -> Iterator[Path]:
    """Yield the folders that editable installs of these packages, or of plugins, point to."""
    for distribution in distributions(path=[str(s) for s in environment.sites]):
        name = (distribution.metadata["Name"] or "").lower().replace("-", "_")
        plugin = any(entry.group == PLUGINS for entry in distribution.entry_points)
        if (name.startswith(names) or plugin) and (source := _source(distribution)):
            yield from (source, source / "src", source / "python")


def _source(distribution: Distribution) -> Path | None:
    """Return the source folder of an editable install (PEP 610, ``direct_url.json``)."""
    try:
        direct = json.loads(distribution.read_text("direct_url.json") or "{}")
    except json.JSONDecodeError:
        return None
    if not isinstance(direct, dict) or not (direct.get("dir_info") or {}).get("editable"):
        return None
    url = urlparse(str(direct.get("url", "")))
    return Path(unquote(url.path)) if url.scheme == "file" else None
