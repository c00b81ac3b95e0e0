"""Presets: which variables a timing run sets, and what to know about them. Data: ``tracekit/rules/presets.toml``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracekit import rules
from tracekit.errors import UsageError
from tracekit.topology import TOPOLOGIES, Topology

FILE = "presets.toml"

#: The named options of `tracekit run` that a preset may give a meaning.
OPTIONS = ("sync", "print_every", "skip_first", "rank")


@dataclass(frozen=True, slots=True)
class Preset:
    """One way to time a run. `options` maps a name of `OPTIONS` to the variables that it sets."""

    name: str
    summary: str
    topology: Topology
    env: Mapping[str, str]
    markers: Sequence[str]
    off: Sequence[str] = ()
    elsewhere: Sequence[str] = ()
    preload: bool = False
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    caveats: Sequence[str] = ()
    no_lines: Sequence[str] = ()

    @property
    def switch(self) -> str:
        """The variable that switches the timing on."""
        return next(iter(self.env))

    @property
    def variables(self) -> tuple[str, ...]:
        """All variables that the preset may set: what a clean run must not have."""
        given = (name for option in self.options.values() for name in option)
        return tuple(dict.fromkeys((*self.env, *given)))

    def is_on(self, env: Mapping[str, str]) -> bool:
        """Return whether a program with this environment would time itself.

        >>> llm_scaler = preset("llm-scaler")
        >>> llm_scaler.is_on({"LLM_SCALER_MOE_TRACE_KERNELS": "0"}), llm_scaler.is_on({})
        (True, False)
        """
        return self.switch in env and env[self.switch] not in self.off

    def environment(self, options: Mapping[str, str]) -> dict[str, str]:
        """Return the variables to set, with the named options given.

        Args:
            options: a value for each of `OPTIONS` that was asked for.

        Raises:
            UsageError: the preset has no such option.

        >>> preset("vllm-xpu").environment({"print_every": "8"})["VLLM_XPU_DECODE_TIMING_PRINT_EVERY"]
        '8'
        """
        env = dict(self.env)
        for option, value in options.items():
            if option not in self.options:
                has = ", ".join(_flag(o) for o in self.options) or "none"
                raise UsageError(f"preset {self.name} has no {_flag(option)} (its options: {has})")
            env |= {name: text.replace("{value}", value) for name, text in self.options[option].items()}
        return env


def presets() -> tuple[Preset, ...]:
    """Return all presets in their declared order.

    Raises:
        UsageError: the file is not as its schema says.
    """
    found = rules.load(Preset, FILE, "preset")
    for one in found:
        if one.topology not in TOPOLOGIES or not one.env or set(one.options) - set(OPTIONS):
            raise UsageError(
                f"{rules.path(FILE)}: preset {one.name}: needs a topology ({', '.join(TOPOLOGIES)}), "
                f"variables to set, and only options of {', '.join(OPTIONS)}"
            )
    return found


def preset(name: str) -> Preset:
    """Return one preset.

    Raises:
        UsageError: there is none of that name.
    """
    for one in presets():
        if one.name == name:
            return one
    raise UsageError(f"unknown preset {name!r}; `tracekit run --list-presets` lists them")


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")
