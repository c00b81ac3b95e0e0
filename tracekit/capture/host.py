"""What the machine is, for a manifest: asked once, before the run; asking during it stalls these engines."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tracekit import machine

#: How long a tool may take.
TOOL_TIMEOUT_S = 15.0

#: Tools that know more of the devices than sysfs does, and how they are asked.
TOOLS = {"sycl-ls": ("sycl-ls", "--verbose"), "xpu-smi": ("xpu-smi", "discovery", "-j")}

#: Packages of GPU drivers and runtimes, as distributions call them.
_PACKAGES = (
    "intel-opencl-icd", "libze-intel-gpu1", "intel-level-zero-gpu", "libze1", "level-zero", "libigc*", "intel-igc*",
    "intel-i915-dkms", "intel-fw-gpu", "linux-firmware", "xpu-smi",
)  # fmt: skip


def describe(root: Path = Path("/"), *, tools: bool = True) -> dict[str, Any]:
    """Return the machine as a JSON object: host, cpu, memory, kernel, gpus, drivers, tools, packages.

    Args:
        root: where ``sys``, ``proc`` and ``dev`` stand.
        tools: whether to run what tools there are (`TOOLS`, and the package manager).
    """
    cpu = machine.text(root / "proc/cpuinfo") or ""
    memory = re.search(r"^MemTotal:\s+(\d+) kB", machine.text(root / "proc/meminfo") or "", re.MULTILINE)
    model = re.search(r"^model name\s*:\s*(.+)$", cpu, re.MULTILINE)
    found: dict[str, Any] = {
        "name": platform.node(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME") if Path("/etc/os-release").exists() else None,
        "kernel": machine.kernel(root),
        "cpu": model[1].strip() if model else None,
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "governor": machine.text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory_bytes": int(memory[1]) * 1024 if memory else None,
        "gpus": [_gpu(root, gpu) for gpu in machine.gpus(root)],
        "drivers": [asdict(driver) for driver in machine.drivers(root)],
    }
    if tools:
        found["tools"] = {name: said for name, argv in TOOLS.items() if (said := _ask(argv)) is not None}
        found["packages"] = _packages()
    return found


def _gpu(root: Path, gpu: machine.Gpu) -> dict[str, Any]:
    device = root / "sys/bus/pci/devices" / gpu.pci
    link = {key: machine.text(device / key) for key in ("current_link_speed", "current_link_width", "revision")}
    return asdict(gpu) | link


def _ask(argv: Sequence[str]) -> str | None:
    """Return what a tool prints, None where there is no such tool; never its failure as an error."""
    program = shutil.which(argv[0])
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TOOL_TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return f"(no answer within {TOOL_TIMEOUT_S:.0f} s)"
    except OSError as error:
        return f"(could not be run: {error.strerror})"
    return done.stdout.decode("utf-8", "replace")[:100_000]


def _packages() -> dict[str, str]:
    """Return the installed versions of GPU driver packages (Debian and its kin)."""
    said = _ask(("dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\n", *_PACKAGES))
    rows = [line.split() for line in (said or "").splitlines()]
    return {row[1]: row[2] for row in rows if len(row) == 3 and row[0] == "installed"}


def git_commit(program: Path) -> str | None:
    """Return the commit of the source tree that a program lies in, with ``+changes`` if tracked files differ."""
    git = shutil.which("git")
    if git is None:
        return None
    ask = [git, "-c", "core.fsmonitor=false", "-C", str(program.resolve().parent)]
    said = _run([*ask, "rev-parse", "HEAD"])
    if said is None or not re.fullmatch(r"[0-9a-f]{40,64}", said):
        return None
    changes = _run([*ask, "status", "--porcelain", "--untracked-files=no"])
    return said + ("+changes" if changes else "")


def _run(argv: Sequence[str]) -> str | None:
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False, env=env)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None


def identities(paths: Sequence[str], hurried: Callable[[], bool] = lambda: False) -> list[dict[str, Any]]:
    """Return what names each file (`tracekit.binary.identify`), with `error` where it could not be read.

    Once `hurried` says so, files are named only.
    """
    from tracekit.binary import identify
    from tracekit.errors import TracekitError

    found: list[dict[str, Any]] = []
    for path in paths:
        if hurried():
            found.append({"path": path, "error": "not read: interrupted"})
            continue
        try:
            found.append(dict(identify(path)))
        except TracekitError as error:
            found.append({"path": path, "error": str(error)})
    return found


def python_packages(mapped: Sequence[str], names: Sequence[str] | None = None) -> dict[str, str]:
    """Return versions of the engines' Python packages in the environments that mapped files lie in.

    Args:
        mapped: paths of mapped files: those below a ``site-packages`` tell the environment.
        names: patterns of distributions; those of `tracekit.environments` by default.
    """
    from fnmatch import fnmatchcase
    from importlib.metadata import distributions

    from tracekit.environments import DISTRIBUTIONS

    sites = {path[: path.index("/site-packages/") + 14] for path in mapped if "/site-packages/" in path}
    found: dict[str, str] = {}
    for dist in distributions(path=sorted(sites)):
        name = _name(dist.metadata)
        if any(fnmatchcase(name, pattern) for pattern in names or DISTRIBUTIONS):
            found[name] = dist.version
    return found


def _name(metadata: Mapping[str, str] | Any) -> str:
    return str(metadata["Name"] or "").lower().replace("_", "-")
