"""Which part of a model a module is, told by its structure: what it is made of, never what the model is called.

vLLM builds every model of the same blocks: column- and row-parallel linears, norms, rotary embeddings, attention
layers, expert layers. A block is known by the names in its class's ancestry, so that nothing of vLLM need be imported;
a part is known by the blocks inside it.

The labels of a model of the family F (its ``model_type``), and what each stands inside:

==============================================  =====================================================================
F.embedding, F.final_norm                       the forward of the model
F.layer.total                                   the forward of the model
F.input_layernorm, F.post_attention_layernorm   the layer; a norm with another name N is F.N.layernorm
F.attn.total                                    the layer
F.attn.qkv_proj, .q_norm, .k_norm, .rope,       attn.total; separate projections go by their own names, as in
.core, .o_proj                                  F.attn.q_b_proj
F.attn.qk_norm                                  attn.total: a norm of q and k together, over all ranks
F.attn.impl_forward, F.attn.kv_cache_update     attn.core: the backend's kernels
F.linear_attn.total                             the layer: recurrent attention (Mamba, gated delta net, ...)
F.linear_attn.NAME                              linear_attn.total: its linears and norms
F.moe.total                                     the layer
F.moe.experts_total                             moe.total
F.moe.router                                    moe.total, or moe.experts_total where the expert layer calls it
F.moe.select_experts, .fused_experts,           moe.experts_total
.shared_experts
F.mlp.total                                     the layer
F.mlp.gate_up_proj, .up_proj, .down_proj        mlp.total; in models without an MLP block, the layer itself
==============================================  =====================================================================
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Ancestor class -> block. The first that is found in a class's ancestry holds, so the special stand before the general.
_BLOCKS = {
    "PPMissingLayer": "missing",
    "StageMissingLayer": "missing",
    "MoERunnerInterface": "experts",
    "FusedMoE": "experts",
    "MambaBase": "recurrent",
    "AttentionLayerBase": "core",
    "QKVParallelLinear": "qkv",
    "MergedColumnParallelLinear": "merged",
    "ColumnParallelLinear": "column",
    "RowParallelLinear": "row",
    "GateLinear": "gate",
    "LinearBase": "linear",
    "Linear": "linear",
    "ParallelLMHead": "head",
    "VocabParallelEmbedding": "embedding",
}
_LINEARS = frozenset({"qkv", "merged", "column", "row", "gate", "linear"})
_LAYER_MAKERS = frozenset({"core", "recurrent", "experts", "row"})

# Block -> name inside attention and inside an MLP. A name is taken once per part: a second block of its kind goes by
# its own name.
_ATTENTION_NAMES = {"qkv": "qkv_proj", "row": "o_proj"}
_MLP_NAMES = {"merged": "gate_up_proj", "column": "up_proj", "row": "down_proj"}


@dataclass(frozen=True)
class Part:
    """A method to be timed under a label."""

    owner: Any
    method: str
    label: str
    traced: bool = True
    """torch.compile traces it: then it is inside the graph, and cannot be timed."""
    once: bool = False
    """Owner is a class, and the method one of several that call each other: time the outermost call."""


@dataclass(frozen=True)
class Parts:
    """What was found in a model."""

    family: str
    layers: int
    parts: tuple[Part, ...]

    @property
    def labels(self) -> list[str]:
        """The labels, each once, in the order in which they were found."""
        return list(dict.fromkeys(part.label for part in self.parts))


def block(module: Any) -> str:
    """Return which block of vLLM a module is, or ``other``.

    A linear that a LoRA adapter wraps counts as what it wraps.
    """
    ancestry = [cls.__name__ for cls in type(module).__mro__]
    base = getattr(module, "base_layer", None)
    if base is not None:
        ancestry += [cls.__name__ for cls in type(base).__mro__]
    for name in _BLOCKS:
        if name in ancestry:
            return _BLOCKS[name]
    if any("RotaryEmbedding" in name for name in ancestry):
        return "rope"
    if any("Norm" in name for name in ancestry):
        return "norm"
    return "other"


def find_parts(model: Any, family: str) -> Parts:
    """Return the parts of a model that can be timed. Modules that layers share are found once."""
    finder = _Finder(family)
    layers = 0
    for owner, module_list in _layer_lists(model):
        for layer in module_list.children():
            if block(layer) != "missing":
                finder.layer(layer)
                layers += 1
        finder.siblings(owner, module_list)
    finder.embedding(model)
    return Parts(family, layers, tuple(finder.parts))


def _layer_lists(model: Any) -> list[tuple[Any, Any]]:
    """Return the lists of decoder layers, each with the module that holds it.

    A list is one of layers if something in it computes attention, experts or a row-parallel linear, and it does not
    stand inside a layer (as a list of experts does). Lists with attention are preferred: encoders of pictures, say,
    have row-parallel linears, but no attention layer that keeps a cache.
    """
    found: list[tuple[Any, Any, bool]] = []
    taken: list[str] = []
    modules = dict(model.named_modules())
    for path, module in modules.items():
        if type(module).__name__ != "ModuleList" or any(path.startswith(f"{outer}.") for outer in taken):
            continue
        blocks = {block(inner) for inner in module.modules()}
        if blocks & _LAYER_MAKERS:
            taken.append(path)
            found.append((modules[path.rpartition(".")[0]], module, bool(blocks & {"core", "recurrent"})))
    caching = [(owner, module) for owner, module, caches in found if caches]
    return caching or [(owner, module) for owner, module, _ in found]


class _Finder:
    """Collects the parts of one model."""

    def __init__(self, family: str) -> None:
        self.family = family
        self.parts: list[Part] = []
        self._seen: set[tuple[int, str]] = set()
        # A part of its own may hold parts that are found again when the part around it is searched.
        self._keep: list[Any] = []

    def add(self, owner: Any, label: str, method: str = "forward", *, traced: bool = True, once: bool = False) -> None:
        """Add a part, unless its owner lacks the method or it is there already."""
        if (id(owner), method) in self._seen or not callable(getattr(owner, method, None)):
            return
        self._seen.add((id(owner), method))
        self._keep.append(owner)
        self.parts.append(Part(owner, method, f"{self.family}.{label}", traced, once))

    def layer(self, layer: Any) -> None:
        """Add a decoder layer and what is in it."""
        self.add(layer, "layer.total")
        names: set[str] = set()
        for name, child in layer.named_children():
            kind = block(child)
            blocks = {block(inner) for inner in child.modules()}
            if kind == "norm":
                self.add(child, name if name.endswith("layernorm") else f"{name}.layernorm")
            elif kind in _LINEARS:
                self.add(child, f"mlp.{_name(_MLP_NAMES, kind, name, names)}")
            elif "experts" in blocks:
                self.experts_block(child)
            elif "recurrent" in blocks:
                self.linear_attention(child)
            elif "core" in blocks or (blocks & _LINEARS and re.search(r"attn|attention", name)):
                self.attention(child)
            elif blocks & _LINEARS:
                self.mlp(child)

    def attention(self, part: Any) -> None:
        """Add an attention block, or an attention layer that stands in the decoder layer without one."""
        if block(part) == "core":
            self.core(part)
            return
        self.add(part, "attn.total")
        names: set[str] = set()
        for name, module in _inside(part, leaves={"core"}):
            kind = block(module)
            if kind == "core":
                self.core(module)
            elif kind == "rope":
                self.add(module, "attn.rope")
            elif kind == "norm":
                self.add(module, f"attn.{name.replace('layernorm', 'norm')}")
                self.joint_norm(module)
            elif kind in _LINEARS:
                self.add(module, f"attn.{_name(_ATTENTION_NAMES, kind, name, names)}")

    def joint_norm(self, module: Any) -> None:
        """Add a norm of q and k together: static methods of the norm's class, called instead of the norms."""
        for method in ("forward_qk", "forward_qkv"):
            self.add(type(module), "attn.qk_norm", method, once=True)

    def core(self, module: Any) -> None:
        """Add an attention layer, and its backend, which stays visible where the layer is an opaque operation."""
        self.add(module, "attn.core")
        backend = getattr(module, "impl", None)
        traced = bool(getattr(module, "use_direct_call", False))
        for method in ("forward", "forward_mha", "forward_mqa"):
            self.add(backend, "attn.impl_forward", method, traced=traced)
        self.add(backend, "attn.kv_cache_update", "do_kv_cache_update", traced=traced)

    def linear_attention(self, part: Any) -> None:
        """Add a recurrent attention block."""
        self.add(part, "linear_attn.total")
        for name, module in _inside(part):
            if block(module) in _LINEARS | {"norm"}:
                self.add(module, f"linear_attn.{name.replace('layernorm', 'norm')}")

    def experts_block(self, part: Any) -> None:
        """Add a block with experts: its router, the expert layer, what that is made of."""
        if block(part) != "experts":
            self.add(part, "moe.total")
        inside = [("", part), *_inside(part, leaves={"experts"})]
        for _, module in inside:
            if block(module) == "experts":
                self.experts(module)  # first: a gate that it calls itself is found there
        for name, module in inside:
            if block(module) == "gate" or (block(module) == "linear" and name in ("gate", "router")):
                self.add(module, "moe.router")
            elif re.fullmatch(r"shared_experts?", name):
                self.add(module, "moe.shared_experts")

    def experts(self, module: Any) -> None:
        """Add an expert layer. Its methods stay visible where it is an opaque operation."""
        self.add(module, "moe.experts_total")
        traced = inspect.isfunction(getattr(module, "_forward_entry", None))
        gate = getattr(module, "gate", None)
        if block(gate) in _LINEARS:
            self.add(gate, "moe.router", traced=traced)
        self.add(getattr(module, "router", None), "moe.select_experts", "select_experts", traced=traced)
        routed = getattr(module, "routed_experts", None)
        for method in ("forward_monolithic", "forward_modular"):
            self.add(routed, "moe.fused_experts", method, traced=traced)
        if routed is None:
            self.add(getattr(module, "quant_method", None), "moe.fused_experts", "apply", traced=traced)

    def mlp(self, part: Any) -> None:
        """Add a dense MLP."""
        self.add(part, "mlp.total")
        names: set[str] = set()
        for name, module in _inside(part):
            if block(module) in _LINEARS:
                self.add(module, f"mlp.{_name(_MLP_NAMES, block(module), name, names)}")

    def siblings(self, owner: Any, module_list: Any) -> None:
        """Add the norm that follows the layers."""
        norms = [(name, child) for name, child in owner.named_children() if block(child) == "norm"]
        for name, child in norms:
            if child is not module_list:
                self.add(child, "final_norm" if len(norms) == 1 else f"{name}.layernorm")

    def embedding(self, model: Any) -> None:
        """Add the embeddings of tokens. Where the head shares the weights, the embedding is still a call of its own."""
        for module in model.modules():
            if block(module) == "embedding":
                self.add(module, "embedding")


def _inside(part: Any, leaves: "set[str] | frozenset[str]" = frozenset()) -> Iterator[tuple[str, Any]]:
    """Yield (own name, module) of all modules inside, without what stands inside blocks and the blocks named."""
    closed: list[str] = []
    for path, module in part.named_modules():
        if not path or any(path.startswith(f"{outer}.") for outer in closed):
            continue
        if block(module) in _LINEARS | leaves:
            closed.append(path)
        yield path.rpartition(".")[2], module


def _name(names: dict[str, str], kind: str, own: str, taken: set[str]) -> str:
    """Return the name for a block of this kind, or the block's own where that is taken."""
    name = names.get(kind, own)
    if name in taken:
        name = own
    taken.add(name)
    return name
