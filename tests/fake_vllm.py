"""A stand-in for what the instrument wraps in vLLM: the same names, structure and calls; no torch, no arithmetic.

Run as a program it does what vLLM does in its processes: the plugin is registered, workers are made (one process for
each rank), a model is loaded and warmed up, a prompt of 32 tokens and then single tokens are computed, and all ends.

Usage: fake_vllm.py [key=value ...], the keys being those of OPTIONS.
"""

import contextlib
import functools
import importlib
import multiprocessing
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

OPTIONS = {
    "model": "moe",  # or opaque (experts that are not traced), dense, joint (a norm of q and k), none (no layers)
    "ranks": "1",
    "tokens": "3",
    "compiled": "0",
    "runner": "first",  # or second: vLLM's runner that marks no scopes
    "fail": "",  # the pass in which a layer raises
    "end": "shutdown",  # or exit: the worker only returns
    "own": "",  # a folder to add to vLLM's own, as a patched vLLM has further files
}
LAYERS = 2


# -- modules


class Module:
    """What of torch's modules is used: named children, a forward that can be replaced."""

    def __init__(self, **children: Any) -> None:
        vars(self).update(children)

    def __call__(self, *args: Any) -> Any:
        return self.forward(*args)

    def forward(self, x: Any) -> Any:
        for child in self.children():
            x = child(x)
        return x

    def named_children(self) -> Iterator[tuple[str, "Module"]]:
        return ((name, child) for name, child in vars(self).items() if isinstance(child, Module))

    def children(self) -> Iterator["Module"]:
        return (child for _, child in self.named_children())

    def named_modules(self, path: str = "", seen: "set[int] | None" = None) -> Iterator[tuple[str, "Module"]]:
        seen = set() if seen is None else seen
        if id(self) in seen:
            return
        seen.add(id(self))
        yield path, self
        for name, child in self.named_children():
            yield from child.named_modules(f"{path}.{name}".lstrip("."), seen)

    def modules(self) -> Iterator["Module"]:
        return (module for _, module in self.named_modules())


class ModuleList(Module):
    def __init__(self, *items: Module) -> None:
        super().__init__(**{str(i): item for i, item in enumerate(items)})


class LinearBase(Module):
    pass


class ReplicatedLinear(LinearBase):
    pass


class ColumnParallelLinear(LinearBase):
    pass


class QKVParallelLinear(ColumnParallelLinear):
    pass


class MergedColumnParallelLinear(ColumnParallelLinear):
    pass


class RowParallelLinear(LinearBase):
    def forward(self, x: Any) -> Any:
        return all_reduce(x)


class VocabParallelEmbedding(Module):
    def forward(self, x: Any) -> Any:
        return all_reduce(x)


class ParallelLMHead(VocabParallelEmbedding):
    pass


class RMSNorm(Module):
    pass


class NormOverRanks(Module):
    @staticmethod
    def forward_qk(norm: Module, x: Any) -> Any:
        return x

    @staticmethod
    def forward_qkv(norm: Module, x: Any) -> Any:
        return NormOverRanks.forward_qk(norm, x)


class RotaryEmbedding(Module):
    pass


class AttentionLayerBase:
    pass


class Backend:
    def do_kv_cache_update(self) -> None:
        pass

    def forward(self) -> None:
        pass


class Attention(Module, AttentionLayerBase):
    use_direct_call = False

    def __init__(self) -> None:
        super().__init__(impl=Backend())

    def forward(self, x: Any) -> Any:
        self.impl.do_kv_cache_update()
        self.impl.forward()
        return x


class SelfAttention(Module):
    def __init__(self, rope: Module, *, joint: bool) -> None:
        norm = NormOverRanks if joint else RMSNorm
        super().__init__(
            qkv_proj=QKVParallelLinear(), q_norm=norm(), k_norm=norm(), rotary_emb=rope, attn=Attention(),
            o_proj=RowParallelLinear(),
        )  # fmt: skip
        self.joint = joint

    def forward(self, x: Any) -> Any:
        x = self.qkv_proj(x)
        x = NormOverRanks.forward_qkv(self.q_norm, x) if self.joint else self.k_norm(self.q_norm(x))
        return self.o_proj(self.attn(self.rotary_emb(x)))


class MLP(Module):
    def __init__(self) -> None:
        super().__init__(gate_up_proj=MergedColumnParallelLinear(), down_proj=RowParallelLinear())


class MoERunnerInterface:
    pass


class Router:
    def select_experts(self) -> None:
        pass


class RoutedExperts:
    def forward_modular(self, x: Any) -> Any:
        return x

    def forward_monolithic(self, x: Any) -> Any:
        return self.forward_modular(x)


class MoERunner(Module, MoERunnerInterface):
    """torch.compile traces its entry where that is a function, and not where it is an operation of its own."""

    def __init__(self, *, opaque: bool) -> None:
        entry = functools.partial(all_reduce) if opaque else all_reduce
        super().__init__(router=Router(), routed_experts=RoutedExperts(), _forward_entry=entry)

    def forward(self, x: Any) -> Any:
        self.router.select_experts()
        return all_reduce(self.routed_experts.forward_modular(x))


class SparseBlock(Module):
    def __init__(self, *, opaque: bool) -> None:
        super().__init__(gate=ReplicatedLinear(), experts=MoERunner(opaque=opaque))


class Layer(Module):
    def __init__(self, model: str, rope: Module) -> None:
        super().__init__(
            input_layernorm=RMSNorm(),
            self_attn=SelfAttention(rope, joint=model == "joint"),
            post_attention_layernorm=RMSNorm(),
            mlp=SparseBlock(opaque=model == "opaque") if model in ("moe", "opaque") else MLP(),
        )

    def forward(self, x: Any) -> Any:
        if x.raises:
            raise ValueError("in the body of a layer")
        return super().forward(x)


class Decoder(Module):
    def __init__(self, model: str) -> None:
        rope = RotaryEmbedding()
        layers = [] if model == "none" else [Layer(model, rope) for _ in range(LAYERS)]
        super().__init__(embed_tokens=VocabParallelEmbedding(), layers=ModuleList(*layers), norm=RMSNorm())


class FakeForCausalLM(Module):
    def __init__(self, model: str) -> None:
        super().__init__(model=Decoder(model), lm_head=ParallelLMHead())
        self.config = types.SimpleNamespace(model_type="fake")

    def forward(self, x: Any) -> Any:
        return self.model(x)

    def compute_logits(self, x: Any) -> Any:
        return x


# -- groups of ranks


class Tensor:
    dtype = "torch.bfloat16"

    def __init__(self, rows: int, *, raises: bool = False) -> None:
        self.shape = (rows, 256)
        self.raises = raises


class GroupCoordinator:
    unique_name = "tp:0"
    use_custom_op_call = False

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def _all_reduce_out_place(self, tensor: Tensor) -> Tensor:
        return tensor

    def _all_gather_out_place(self, tensor: Tensor, dim: int) -> Tensor:
        return tensor


def all_reduce(tensor: Tensor) -> Tensor:
    group = sys.modules["vllm.distributed.parallel_state"]._TP  # type: ignore[attr-defined]
    return group._all_reduce_out_place(tensor) if group.world_size > 1 else tensor  # type: ignore[no-any-return]


# -- runner, worker, engine


class Mode:
    def __init__(self, name: str, value: int) -> None:
        self.name, self.value = name, value

    def __bool__(self) -> bool:
        return bool(self.value)


def batch(rows: int, put_out: int) -> types.SimpleNamespace:
    cached = types.SimpleNamespace(req_ids=["a"] if put_out else [], num_output_tokens=[put_out] if put_out else [])
    return types.SimpleNamespace(
        num_scheduled_tokens={"a": rows} if rows else {},
        total_num_scheduled_tokens=rows,
        scheduled_cached_reqs=cached,
    )


class Runner:
    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        compiled = options["compiled"] == "1"
        self.vllm_config = types.SimpleNamespace(
            compilation_config=types.SimpleNamespace(
                mode=Mode("VLLM_COMPILE", 3) if compiled else Mode("NONE", 0),
                cudagraph_mode=Mode("PIECEWISE", 1) if compiled else Mode("NONE", 0),
            )
        )
        self.speculative_config = None
        self.passes = 0

    def load_model(self) -> None:
        self.model = FakeForCausalLM(self.options["model"])

    def get_model(self) -> FakeForCausalLM:
        return self.model

    def scope(self, name: str) -> Any:
        marks = self.options["runner"] == "first"
        return record_function_or_nullcontext(f"gpu_model_runner: {name}") if marks else contextlib.nullcontext()

    def prepare_inputs(self) -> None:
        pass

    def sample(self) -> None:
        pass

    def execute_model(self, scheduler_output: Any) -> Any:
        rows = scheduler_output.total_num_scheduled_tokens
        if not rows:
            return "nothing to do"
        self.passes += 1
        with self.scope("preprocess"):
            self.prepare_inputs()
        with self.scope("forward"):
            self.model(Tensor(rows, raises=self.options["fail"] == str(self.passes)))
        with self.scope("postprocess"):
            self.model.compute_logits(Tensor(1))
        return None

    def sample_tokens(self) -> str:
        with self.scope("sample"):
            self.sample()
        return "tokens"


class WorkerWrapperBase:
    """What vLLM makes of each worker."""

    def __init__(self, rank: int, options: dict[str, str]) -> None:
        self.rank, self.options = rank, options

    def init_device(self) -> None:
        self.worker = types.SimpleNamespace(
            rank=self.rank,
            parallel_config=types.SimpleNamespace(world_size=int(self.options["ranks"]), data_parallel_index=0),
            device=types.SimpleNamespace(type="xpu"),
            model_runner=Runner(self.options),
        )

    def shutdown(self) -> None:
        pass


class EngineCore:
    def shutdown(self) -> None:
        pass


def record_function_or_nullcontext(name: str) -> Any:
    utils: Any = sys.modules["vllm.v1.utils"]
    if utils._PROFILER_FUNC is None:
        utils._PROFILER_FUNC = contextlib.nullcontext
    return utils._PROFILER_FUNC(name)


def synchronize() -> None:
    if os.environ.get("FAKE_SHOW_WAITS"):
        os.write(2, b"waited\n")


def pretend(options: dict[str, str]) -> None:
    """Put the modules in place that the instrument looks for."""

    def module(name: str, **content: Any) -> None:
        made = types.ModuleType(name)
        vars(made).update(content)
        sys.modules[name] = made

    module("torch", accelerator=types.SimpleNamespace(synchronize=synchronize),
           compiler=types.SimpleNamespace(is_compiling=lambda: False))  # fmt: skip
    module("vllm", __path__=[options["own"]] if options["own"] else [])
    module("vllm.v1.utils", _PROFILER_FUNC=None, record_function_or_nullcontext=record_function_or_nullcontext)
    module("vllm.v1.worker.worker_base", WorkerWrapperBase=WorkerWrapperBase)
    module("vllm.v1.engine.core", EngineCore=EngineCore)
    group = GroupCoordinator(int(options["ranks"]))
    module("vllm.distributed.parallel_state", GroupCoordinator=GroupCoordinator, _TP=group)
    context = types.SimpleNamespace(cudagraph_runtime_mode=Mode("NONE", 0), batch_descriptor=None, skip_compiled=False)
    module("vllm.forward_context", is_forward_context_available=lambda: True, get_forward_context=lambda: context)
    if options["runner"] == "second":
        module("vllm.second_runner")
        Runner.__module__ = "vllm.second_runner"


def work(rank: int, options: dict[str, str]) -> None:
    wrapper = WorkerWrapperBase(rank, options)
    wrapper.init_device()
    runner = wrapper.worker.model_runner
    runner.load_model()
    runner.model(Tensor(512))  # vLLM's profile run: no pass
    for put_out in range(int(options["tokens"])):
        try:
            output = runner.execute_model(batch(1 if put_out else 32, put_out)) or runner.sample_tokens()
        except ValueError as error:
            os.write(2, f"came through: {error}\n".encode())
        else:
            assert output == "tokens"
    assert runner.execute_model(batch(0, 0)) == "nothing to do"
    if options["end"] == "shutdown":
        wrapper.shutdown()


def main() -> None:
    options = OPTIONS | dict(item.split("=", 1) for item in sys.argv[1:])
    pretend(options)
    register = importlib.import_module("tracekit.instrument.vllm_plugin").register
    register()
    register()
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=functools.partial(work, rank, options)) for rank in range(int(options["ranks"]))]
    with record_function_or_nullcontext("llm_engine step: get_output"):
        for child in children:
            child.start()
        for child in children:
            child.join()
    sys.exit(any(child.exitcode for child in children))


if __name__ == "__main__":
    sys.modules["fake_vllm"] = sys.modules["__main__"]
    main()
