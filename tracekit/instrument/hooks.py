"""Where the timing is put into a running vLLM: its workers, the runner's phases, the model's parts, the collectives.

Nothing of vLLM is imported by name at the top, and nothing is assumed to be there: what a version of vLLM does not have
is not timed, and that is said once on standard error. Written for vLLM 0.32 and run in it on a CPU
(docs/instrumentation-vllm.md).
"""

import atexit
import contextlib
import functools
import importlib
import multiprocessing.util
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tracekit.instrument.parts import Parts, find_parts
from tracekit.instrument.passes import batch_metadata, forward_metadata
from tracekit.instrument.settings import Settings
from tracekit.instrument.timing import Recorder, clean_label
from tracekit.instrument.vllm_plugin import SWITCH

FORWARD = "gpu_model_runner.model_forward"
LOGITS = "gpu_model_runner.compute_logits"
SAMPLE = "gpu_model_runner.sample"
PREPROCESS = "gpu_model_runner.preprocess"

# Method of vLLM's groups of ranks -> label.
_COLLECTIVES = {
    "_all_reduce_out_place": "all_reduce",
    "_all_gather_out_place": "all_gather",
    "_reduce_scatter_out_place": "reduce_scatter",
}

_recorder: Recorder | None = None


def install_once() -> None:
    """Install the timing in this process. Calling it again does nothing, in a forked child too."""
    global _recorder
    if _recorder is not None:
        return
    recorder = Recorder(Settings.from_environment(os.environ))
    _recorder = recorder
    patched = own_timing(importlib.import_module("vllm").__path__)
    if patched is not None:
        recorder.notice(f"{patched} listens to {SWITCH} too: this vLLM times itself, so tracekit's plugin stands back")
        return
    arm(recorder)
    install(recorder)


def own_timing(folders: Iterable[str]) -> Path | None:
    """Return the file of vLLM that knows the switch: a vLLM patched to time itself would print every call twice.

    Reading all its sources takes 0.1 s, and is done only when timing is switched on.
    """
    name = SWITCH.encode()
    files = (file for folder in folders for file in sorted(Path(folder).rglob("*.py")))
    return next((file for file in files if name in file.read_bytes()), None)


def arm(recorder: Recorder) -> None:
    """See to it that the totals are printed however the process ends, short of being killed.

    A child of multiprocessing leaves through ``os._exit`` and skips atexit, but runs its finalizers; a forked child
    has inherited counts that are not its own, and lost the finalizers.
    """

    def finalize(_: object = None) -> None:
        multiprocessing.util.Finalize(None, recorder.print_summary, exitpriority=100)

    atexit.register(recorder.print_summary)
    finalize()
    os.register_at_fork(after_in_child=recorder.forget)
    multiprocessing.util.register_after_fork(recorder, finalize)


def install(recorder: Recorder) -> None:
    """Hook the classes that make workers and engine, and the scopes that vLLM marks for profilers."""
    hook_scopes(recorder, importlib.import_module("vllm.v1.utils"))
    base = importlib.import_module("vllm.v1.worker.worker_base")
    hook_workers(recorder, base.WorkerWrapperBase)
    engine = sys.modules.get("vllm.v1.engine.core")
    for name in ("EngineCore", "EngineCoreProc", "DPEngineCoreProc"):
        before_shutdown(recorder, getattr(engine, name, None))


# -- scopes


def hook_scopes(recorder: Recorder, utils: Any) -> None:
    """Time what vLLM marks for profilers: phases of runner, scheduler and engine.

    A profiler of the user's own (``VLLM_CUSTOM_SCOPES_FOR_PROFILING``) keeps its scopes: they stand inside ours.
    """
    if not hasattr(utils, "_PROFILER_FUNC"):
        recorder.notice("this vLLM has no scopes to hook: phases of scheduler and engine are not timed")
        return
    if utils._PROFILER_FUNC is None:
        utils.record_function_or_nullcontext("tracekit")  # makes it settle which profiler there is
    profiler = utils._PROFILER_FUNC
    if profiler is None or profiler is contextlib.nullcontext:
        utils._PROFILER_FUNC = functools.partial(scope, recorder)
    else:
        utils._PROFILER_FUNC = functools.partial(_scope_with, recorder, profiler)


def scope(recorder: Recorder, name: str) -> Any:
    """Return a context manager that times one of vLLM's scopes. Those of the runner count within a model pass only."""
    label = scope_label(name)
    runner = label.startswith("gpu_model_runner.")
    if (runner and not recorder.in_pass) or not recorder.wanted or not recorder.settings.wants_label(label):
        return contextlib.nullcontext()
    if label == FORWARD and recorder.settings.step_summary:
        recorder.describe_pass(forward_metadata())
    return recorder.region(label)


@contextlib.contextmanager
def _scope_with(recorder: Recorder, profiler: Callable[[str], Any], name: str) -> Any:
    with scope(recorder, name), profiler(name):
        yield


@functools.cache
def scope_label(name: str) -> str:
    """Return the label for a scope of vLLM.

    >>> scope_label("gpu_model_runner: forward")
    'gpu_model_runner.model_forward'
    >>> scope_label("llm_engine step: get_output")
    'llm_engine.get_output'
    """
    label = clean_label(re.sub(r"(?: step)?: ", ".", name)).replace(" ", "_")
    return FORWARD if label == "gpu_model_runner.forward" else label


# -- workers


def hook_workers(recorder: Recorder, wrapper: Any) -> None:
    """Time the workers that this process makes, from the moment their device is ready."""
    original = wrapper.init_device

    @functools.wraps(original)
    def init_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        hook_worker(recorder, self.worker)
        return result

    wrapper.init_device = init_device
    before_shutdown(recorder, wrapper)


def hook_worker(recorder: Recorder, worker: Any) -> None:
    """Time one worker: settle its rank, wrap its runner, and its model once that is loaded."""
    recorder.settle_rank(global_rank(worker))
    runner = getattr(worker, "model_runner", None)
    if not recorder.wanted or runner is None:
        return
    recorder.wait_with(device_wait(worker))
    hook_collectives(recorder)
    hook_passes(recorder, runner)
    load_model = runner.load_model

    @functools.wraps(load_model)
    def load(*args: Any, **kwargs: Any) -> Any:
        result = load_model(*args, **kwargs)
        hook_model(recorder, runner)
        return result

    runner.load_model = load


def before_shutdown(recorder: Recorder, cls: Any) -> None:
    """Print the totals before a class's own ``shutdown``: it may take so long that its process is killed."""
    original = vars(cls).get("shutdown") if cls is not None else None
    if original is None:
        return

    @functools.wraps(original)
    def shutdown(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.print_summary()
        return original(self, *args, **kwargs)

    cls.shutdown = shutdown


def global_rank(worker: Any) -> int:
    """Return the worker's rank among all workers of all data-parallel engines: no two share one."""
    config = worker.parallel_config
    engine = getattr(config, "data_parallel_index", None) or getattr(config, "data_parallel_rank", None) or 0
    return int(engine) * int(config.world_size) + int(worker.rank)


def device_wait(worker: Any) -> Callable[[], object] | None:
    """Return what waits for the worker's device; None for a CPU, which is done when the call returns."""
    torch = sys.modules["torch"]
    device = getattr(worker, "device", None)
    kind = getattr(device, "type", None)
    if kind is None or kind == "cpu":
        return None
    accelerator = getattr(torch, "accelerator", None)
    wait = (accelerator or getattr(torch, kind)).synchronize
    capturing = getattr(getattr(torch, kind, None), "is_current_stream_capturing", None)

    def wait_unless_capturing() -> None:
        if capturing is None or not capturing():  # waiting while a graph is recorded is an error
            wait()

    return wait_unless_capturing


# -- model passes


def hook_passes(recorder: Recorder, runner: Any) -> None:
    """Mark where a model pass begins and ends: only inside are the model's parts timed.

    So vLLM's profile and warm-up runs, which are no one's work, are not printed.
    """
    execute_model = runner.execute_model

    @functools.wraps(execute_model)
    def execute(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if not scheduler_output.total_num_scheduled_tokens or kwargs.get("dummy_run"):
            return execute_model(scheduler_output, *args, **kwargs)
        recorder.begin_pass(batch_metadata(scheduler_output, runner) if recorder.settings.step_summary else {})
        _hook_full_graphs(recorder, runner)
        output = _or_end(recorder, execute_model, scheduler_output, *args, **kwargs)
        if output is not None or not hasattr(runner, "sample_tokens"):
            recorder.end_pass()
        return output

    runner.execute_model = execute
    sample_tokens = getattr(runner, "sample_tokens", None)
    if sample_tokens is None:
        return

    @functools.wraps(sample_tokens)
    def sample(*args: Any, **kwargs: Any) -> Any:
        output = _or_end(recorder, sample_tokens, *args, **kwargs)
        recorder.end_pass()
        return output

    runner.sample_tokens = sample


def _or_end(recorder: Recorder, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the function; if an exception leaves it, the pass ends as an error and the exception goes on."""
    try:
        return function(*args, **kwargs)
    except BaseException:
        recorder.end_pass("error")
        raise


# -- the model


def hook_model(recorder: Recorder, runner: Any) -> None:
    """Time the parts of the runner's model, and the phases that the runner does not mark itself."""
    model = runner.get_model()
    compilation = runner.vllm_config.compilation_config
    mode = getattr(compilation, "mode", getattr(compilation, "level", 0))
    compiled = bool(mode) and getattr(mode, "name", "") != "NONE"
    found = find_parts(language_model(model), family_of(model, runner))
    hidden = ["all_reduce"] if compiled and collectives_are_traced() else []
    for part in found.parts:
        if compiled and part.traced:
            hidden.append(part.label)
        else:
            wrap(recorder, part.owner, part.method, part.label, outermost=part.once)
    wrap(recorder, model, "compute_logits", LOGITS)
    hook_phases(recorder, runner, model)
    _tell(recorder, found, hidden, getattr(getattr(compilation, "cudagraph_mode", None), "name", "NONE"))


def hook_phases(recorder: Recorder, runner: Any, model: Any) -> None:
    """Time the phases of a runner that marks no scopes (vLLM's second model runner), by its methods."""
    if any(hasattr(sys.modules.get(cls.__module__), "record_function_or_nullcontext") for cls in type(runner).__mro__):
        return
    wrap(recorder, runner, "prepare_inputs", PREPROCESS)
    wrap(recorder, model, "forward", FORWARD, outermost=True, opening=_describe(recorder))
    wrap(recorder, runner, "sample", SAMPLE)


def _hook_full_graphs(recorder: Recorder, runner: Any) -> None:
    """Time the replay of a whole recorded graph, which is the forward of such a pass. The graphs are made late."""
    graphs = getattr(runner, "cudagraph_manager", None)
    if graphs is not None and not hasattr(getattr(graphs, "run_fullgraph", None), "__wrapped__"):
        wrap(recorder, graphs, "run_fullgraph", FORWARD, outermost=True)


def _describe(recorder: Recorder) -> Callable[[], None] | None:
    if not recorder.settings.step_summary:
        return None
    return lambda: recorder.describe_pass(forward_metadata())


def language_model(model: Any) -> Any:
    """Return the part of a model that makes the text: of a model of pictures and text, the decoder."""
    inner = getattr(model, "get_language_model", None)
    return inner() if callable(inner) else model


def family_of(model: Any, runner: Any) -> str:
    """Return the word that opens the model's labels: the ``model_type`` of its text configuration.

    Without one it is the class's name: ``Qwen3MoeForCausalLM`` is ``qwen3_moe``.
    """
    config = getattr(getattr(runner, "model_config", None), "hf_text_config", None) or getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if not kind:
        name = re.sub(r"For[A-Z]\w*$", "", type(model).__name__)
        kind = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"\W+", "_", str(kind)).lower()


def _tell(recorder: Recorder, found: Parts, hidden: Iterable[str], graphs: str) -> None:
    sync = "waiting for the device around each region" if recorder.waits else "not waiting for the device"
    recorder.notice(
        f"timing {found.family}: {found.layers} layers, {sync}. A timed run is a diagnosis, not a throughput"
    )
    if not found.layers:
        recorder.notice("no decoder layers were recognised in this model: only the runner and collectives are timed")
    names = ", ".join(dict.fromkeys(hidden))
    if names:
        recorder.notice(f"torch.compile hides these, which is not to say that they are fast: {names}")
    if graphs != "NONE":
        recorder.notice(
            f"device graphs are on ({graphs}): what is replayed from a graph prints nothing, so counts of regions "
            "inside the forward may be short"
        )
    if names or graphs != "NONE":
        recorder.notice("run with --enforce-eager to see every region")


# -- collectives


def hook_collectives(recorder: Recorder) -> None:
    """Time the collectives of vLLM's groups of ranks, by shape and type of what goes in."""
    state = importlib.import_module("vllm.distributed.parallel_state")
    for method, name in _COLLECTIVES.items():
        if hasattr(state.GroupCoordinator, method):
            wrap(recorder, state.GroupCoordinator, method, functools.partial(collective_label, name))
        else:
            recorder.notice(f"this vLLM has no GroupCoordinator.{method}: {name} is not timed")


def collectives_are_traced() -> bool:
    """Say whether torch.compile takes the collectives into its graph; where they are opaque operations it does not."""
    state = sys.modules.get("vllm.distributed.parallel_state")
    group = getattr(state, "_TP", None)
    return getattr(group, "world_size", 1) > 1 and not getattr(group, "use_custom_op_call", True)


def collective_label(name: str, group: Any, tensor: Any, *_: Any, **__: Any) -> str:
    """Return ``all_reduce:(1, 256):torch.bfloat16``; with the group in between if it is not the tensor-parallel one."""
    return _collective_label(name, str(getattr(group, "unique_name", "tp")), tuple(tensor.shape), tensor.dtype)


@functools.lru_cache(maxsize=4096)
def _collective_label(name: str, group: str, shape: tuple[int, ...], dtype: Any) -> str:
    site = group.partition(":")[0]
    return f"{name}:{shape}:{dtype}" if site == "tp" else f"{name}:{site}:{shape}:{dtype}"


# -- wrapping


def wrap(
    recorder: Recorder,
    owner: Any,
    method: str,
    label: "str | Callable[..., str]",
    *,
    outermost: bool = False,
    opening: Callable[[], None] | None = None,
) -> None:
    """Replace a method of an object or a class by one that times it within model passes.

    ``label`` is the label, or makes it from the call's arguments. With ``outermost`` a call inside another that is
    timed under the same label is part of that. ``opening`` is called before each timed call.
    """
    original = getattr(owner, method, None)
    if not callable(original) or getattr(original, "tracekit_label", None) is not None:
        return
    if isinstance(label, str) and not recorder.settings.wants_label(label):
        return
    timed = _timed(recorder, original, label, opening)
    if outermost:
        timed = _outermost(original, timed, label)
    timed.tracekit_label = label  # type: ignore[attr-defined]
    static = isinstance(owner, type) and isinstance(vars(owner).get(method), staticmethod)
    setattr(owner, method, staticmethod(timed) if static else timed)


def _timed(
    recorder: Recorder,
    original: Callable[..., Any],
    label: "str | Callable[..., str]",
    opening: Callable[[], None] | None,
) -> Callable[..., Any]:
    tracing = tracing_test()
    named = label if callable(label) else None
    fixed = "" if callable(label) else label

    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if tracing() or not recorder.in_pass:
            return original(*args, **kwargs)
        text = named(*args, **kwargs) if named else fixed
        if named and not recorder.settings.wants_label(text):
            return original(*args, **kwargs)
        if opening is not None:
            opening()
        # Not `recorder.region`: this is called some thousand times in a pass. What an exception leaves is no call.
        recorder.synchronize()
        start = recorder.clock()
        result = original(*args, **kwargs)
        recorder.synchronize()
        recorder.record(text, recorder.clock() - start)
        return result

    return timed


def _outermost(
    original: Callable[..., Any], timed: Callable[..., Any], label: "str | Callable[..., str]"
) -> Callable[..., Any]:
    busy = _BUSY.setdefault(str(label), threading.local())

    @functools.wraps(original)
    def outermost(*args: Any, **kwargs: Any) -> Any:
        if getattr(busy, "inside", False):
            return original(*args, **kwargs)
        busy.inside = True
        try:
            return timed(*args, **kwargs)
        finally:
            busy.inside = False

    return outermost


_BUSY: dict[str, threading.local] = {}


def tracing_test() -> Callable[[], bool]:
    """Return what tells whether torch.compile is tracing: then there is nothing to time."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    test: Callable[[], bool] = getattr(compiler, "is_compiling", None) or (lambda: False)
    return test
