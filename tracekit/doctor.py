"""What of a machine matters for a timing run, and which dialects could be captured on it.

    Examination = devices, drivers, groups, runtimes, engines, Python environments -> a verdict for each dialect

Everything is read from files; nothing is run and nothing is sent to a device.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tracekit import machine
from tracekit.binary.elf import is_elf, opened
from tracekit.binary.hooks import HookSearch, find_hook, hook, search_files, why_missing
from tracekit.binary.libraries import find_library
from tracekit.environments import Environment, environments, package_files
from tracekit.errors import TracekitError

#: Version of the JSON.
SCHEMA = 1

#: The dialects that this project is for, and the variable that switches each on.
DIALECTS: Mapping[str, str] = {
    "ggml-sycl": "GGML_SYCL_OP_TIMING",
    "llm-scaler": "LLM_SCALER_MOE_TRACE_KERNELS",
    "vllm-xpu": "VLLM_XPU_DECODE_TIMING",
}

#: Programs of llama.cpp whose operations can be timed; older trees call the worker rpc-server.
GGML_PROGRAMS = ("ggml-rpc-server", "rpc-server", "llama-server", "llama-bench", "llama-cli", "llama-completion")

#: Programs that say more about the machine.
TOOLS = ("sycl-ls", "xpu-smi", "icpx", "ocloc")

_LEVEL_ZERO = "libze_intel_gpu.so.1"
_OPENCL_GPU = "libigdrcl.so"

#: Libraries between an engine and the device: the first name that is found counts.
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "level-zero loader": ("libze_loader.so.1",),
    "level-zero GPU driver": (_LEVEL_ZERO,),
    "OpenCL loader": ("libOpenCL.so.1",),
    "SYCL runtime": ("libsycl.so.9", "libsycl.so.8", "libsycl.so.7"),
    "oneCCL": ("libccl.so.1",),
}

#: Variables that choose devices, or that time already.
_VARIABLES = ("ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY", "SYCL_UR_USE_LEVEL_ZERO_V2")


@dataclass(frozen=True, slots=True)
class Engine:
    """A program of an engine on the PATH: the timing variable it could be switched on by, or why it cannot.

    `missing` are libraries that it needs and that the loader would not find.
    """

    name: str
    path: Path
    variable: str | None = None
    reason: str | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a dialect could be captured here: `where` its hook is, and what is missing, one sentence each."""

    dialect: str
    variable: str
    ready: bool
    where: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Examination:
    """What `examine` found. Paths are as the loader or the shell would take them."""

    kernel: str | None
    gpus: tuple[machine.Gpu, ...]
    drivers: tuple[machine.Driver, ...]
    groups: tuple[machine.Group, ...]
    libraries: Mapping[str, Path | None]
    opencl_drivers: tuple[str, ...]
    oneapi: Path | None
    compilers: tuple[str, ...]
    oneapi_active: bool
    tools: Mapping[str, Path | None]
    variables: Mapping[str, str]
    engines: tuple[Engine, ...]
    environments: tuple[Environment, ...]
    verdicts: tuple[Verdict, ...]


def examine(
    root: Path = Path("/"),
    variables: Mapping[str, str] | None = None,
    own_groups: frozenset[int] | None = None,
    own_prefix: Path | None = None,
    access: machine.Access = machine.may_open,
) -> Examination:
    """Return what matters for a timing run on this machine.

    Args:
        root: where ``sys``, ``proc``, ``dev``, ``etc`` and the system's libraries stand.
        variables: the environment variables; this process's by default. PATH and the like are not below `root`.
        own_groups: the numbers of the user's groups; this process's by default.
        own_prefix: the Python environment that runs tracekit.
        access: says whether the user may open a device node.
    """
    variables = os.environ if variables is None else variables
    gpus = machine.gpus(root, access)
    groups = machine.groups(root, own_groups)
    found = {what: _first_library(names, variables, root) for what, names in LIBRARIES.items()}
    opencl = machine.opencl_drivers(root)
    where, compilers = machine.oneapi(variables, root)
    engines = tuple(_engines(variables))
    pythons = environments(variables, own_prefix)
    device = tuple(_device_faults(gpus, groups, found, opencl))
    return Examination(
        kernel=machine.kernel(root),
        gpus=gpus,
        drivers=machine.drivers(root),
        groups=groups,
        libraries=found,
        opencl_drivers=opencl,
        oneapi=where,
        compilers=compilers,
        oneapi_active="SETVARS_COMPLETED" in variables or "CMPLR_ROOT" in variables,
        tools={name: _program(name, variables) for name in TOOLS},
        variables={n: variables[n] for n in (*_VARIABLES, *DIALECTS.values()) if n in variables},
        engines=engines,
        environments=pythons,
        verdicts=(_ggml(device, engines), *(_python(name, device, pythons) for name in ("llm-scaler", "vllm-xpu"))),
    )


def examination_json(found: Examination) -> dict[str, Any]:
    """Return an examination as JSON values: the fields of `Examination`, paths as text."""
    return {"schema": SCHEMA, **_plain(asdict(found))}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _first_library(names: Iterable[str], variables: Mapping[str, str], root: Path) -> Path | None:
    return next((path for name in names if (path := find_library(name, variables, root))), None)


def _program(name: str, variables: Mapping[str, str]) -> Path | None:
    found = shutil.which(name, path=variables.get("PATH", ""))
    return Path(found) if found else None


def _engines(variables: Mapping[str, str]) -> Iterator[Engine]:
    for name in GGML_PROGRAMS:
        path = _program(name, variables)
        if path is not None:
            yield _engine(name, path, variables)
    vllm = _program("vllm", variables)
    if vllm is not None:
        yield Engine("vllm", vllm)


def _engine(name: str, path: Path, variables: Mapping[str, str]) -> Engine:
    variable = DIALECTS["ggml-sycl"]
    try:
        with opened(path) as source:
            if not is_elf(source):
                return Engine(name, path, reason=f"{path} is a script: what it starts cannot be told")
        found = find_hook(path, variable, variables)
    except TracekitError as error:
        return Engine(name, path, reason=str(error))
    reason = why_missing(found, name)
    return Engine(name, path, variable if reason is None else None, reason, found.missing)


def _device_faults(
    gpus: Iterable[machine.Gpu],
    groups: Iterable[machine.Group],
    libraries: Mapping[str, Path | None],
    opencl: Iterable[str],
) -> Iterator[str]:
    """Yield what stands between a program of this user and an Intel GPU."""
    gpus = list(gpus)
    bound = [gpu for gpu in gpus if gpu.driver in ("xe", "i915") and gpu.render]
    if not gpus:
        yield "there is no Intel GPU on the PCI bus"
    elif not bound:
        yield f"no driver (xe or i915) is bound to {', '.join(gpu.pci for gpu in gpus)}"
    elif not any(gpu.accessible for gpu in bound):
        outside = [group.name for group in groups if group.name == "render" and not group.member]
        cure = "; join group render (sudo usermod -aG render $USER) and log in again" if outside else ""
        yield f"this user may not open {', '.join(f'/dev/dri/{gpu.render}' for gpu in bound)}{cure}"
    if libraries["level-zero GPU driver"] is None and not any(_OPENCL_GPU in name for name in opencl):
        yield f"neither {_LEVEL_ZERO} nor {_OPENCL_GPU} is installed: SYCL has no way to an Intel GPU"


def _ggml(device: tuple[str, ...], engines: Iterable[Engine]) -> Verdict:
    variable = DIALECTS["ggml-sycl"]
    programs = [e for e in engines if e.name in GGML_PROGRAMS]
    hooked = [e for e in programs if e.variable]
    missing = list(device)
    if not programs:
        missing.append(f"none of {', '.join(GGML_PROGRAMS)} is on the PATH")
    elif not hooked:
        missing += [e.reason for e in programs if e.reason]
    elif all(e.missing for e in hooked):
        missing += [
            f"{e.path} needs {', '.join(e.missing[:3])}, which the loader does not find; activate oneAPI (setvars.sh)"
            for e in hooked
        ]
    return Verdict("ggml-sycl", variable, not missing, tuple(str(e.path) for e in hooked), tuple(missing))


def _python(dialect: str, device: tuple[str, ...], pythons: Iterable[Environment]) -> Verdict:
    """Judge a dialect whose hook lives in packages of a Python environment."""
    variable = DIALECTS[dialect]
    missing = list(device)
    with_vllm = [env for env in pythons if any(name == "vllm" or name.startswith("vllm-") for name in env.packages)]
    if not with_vllm:
        missing.append("vllm is not installed in any Python environment in reach (activate the one that it is in)")
    searches = [_search(variable, env) for env in with_vllm]
    usable = tuple(str(path) for found in searches for path, _ in found.found if why_missing(found, "") is None)
    if with_vllm and not usable:
        missing.append(_why_no_hook(variable, with_vllm, searches))
    return Verdict(dialect, variable, not missing, usable, tuple(missing))


def _search(variable: str, env: Environment) -> HookSearch:
    wanted = hook(variable)
    suffix = ".so" if wanted.language == "binary" else ".py"
    return search_files(wanted, package_files(env, wanted.packages, suffix))


def _why_no_hook(variable: str, pythons: Iterable[Environment], searches: Iterable[HookSearch]) -> str:
    wanted = hook(variable)
    names = " or ".join(wanted.packages)
    prefixes = ", ".join(str(env.prefix) for env in pythons)
    files = sum(len(found.searched) for found in searches)
    if not files:
        return f"no package {names} is in {prefixes}"
    cure = "install tracekit there" if wanted.language == "python" else "see `tracekit patch`"
    return f"none of {files:,} files of {names} in {prefixes} has {variable}; {cure}"
