"""What vLLM is to call in each of its processes (entry-point group ``vllm.general_plugins``).

Unless ``VLLM_XPU_DECODE_TIMING`` is exactly ``1`` it reads one variable and returns.
"""

import os

SWITCH = "VLLM_XPU_DECODE_TIMING"


def register() -> None:
    """Install the timing in this process, if it is switched on. Calling it again does nothing.

    Raises `UsageError` for a variable that cannot be understood: a run that would measure something else than was
    asked for ends at its start.
    """
    if os.environ.get(SWITCH) != "1":
        return
    from tracekit.instrument import hooks

    hooks.install_once()
