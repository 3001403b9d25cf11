"""Model configs: what an architecture is, checked before anything is compiled. No jax in here.

`Dense` is a Llama- or Qwen3-like decoder, `Grug` the mixture of experts with all its parts; each says its
layer plan, parameter counts and FLOPs shape, so that forward pass, export and reports read the same facts.
"""

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from lmlab.core.errors import ConfigError
from lmlab.science.flops import Shape


class LayerPlan(NamedTuple):
    """What differs between layers: the window (None = all before), and whether RoPE turns q and k."""

    window: int | None
    rope: bool


class Experts(Enum):
    """How the routed experts are computed."""

    BATCHED = "batched"
    """Sorted, padded to the capacity, one batched matrix product per weight; overflow dropped and counted."""
    DENSE = "dense"
    """Every expert on every token: exact, never drops, E/K times the work."""


@dataclass(frozen=True)
class Dense:
    """A dense decoder: RMSNorm, GQA, RoPE, SwiGLU.

    >>> Dense.sized(256, vocab=8192).param_count()
    6309632
    """

    vocab: int
    """Rows of the embedding."""
    hidden: int
    """Width of the residual stream."""
    layers: int
    """Blocks, >= 1."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads; divides `heads`."""
    mlp_width: int
    """Width of the SwiGLU."""
    head_dim: int | None = None
    """Width of a head, even; None = hidden / heads."""
    tied: bool = False
    """Whether the LM head is the embedding, transposed."""
    qk_norm: bool = False
    """Whether q and k pass an RMSNorm with weights before RoPE (Qwen3)."""
    biases: bool = False
    """Whether the four attention projections have biases."""
    rope_theta: float = 10_000.0
    """Base of the rotary wavelengths, > 0."""
    norm_eps: float = 1e-5
    """Added to the mean square in a norm, > 0."""
    max_seq: int = 4096
    """Longest sequence the model is meant for; written to the exported config."""

    def __post_init__(self) -> None:
        _check_positive(self, "vocab", "hidden", "layers", "heads", "kv_heads", "mlp_width", "max_seq")
        _check_positive(self, "rope_theta", "norm_eps")
        _check_heads(self)
        _check_rotary(self.head_width, self.rotary_width)

    @staticmethod
    def sized(hidden: int, *, vocab: int, layers: int | None = None, tied: bool = False) -> "Dense":
        """A dense model of that width: depth by the rule that Grug uses, MLP 8/3 as wide, GQA."""
        heads, kv_heads = _heads(hidden)
        return Dense(
            vocab=vocab,
            hidden=hidden,
            layers=layers or _depth(hidden),
            heads=heads,
            kv_heads=kv_heads,
            mlp_width=_round_up(hidden * 8 / 3, 32),
            tied=tied,
        )

    @property
    def head_width(self) -> int:
        """Width of a head, derived from `hidden` where not given."""
        return self.head_dim or self.hidden // self.heads

    @property
    def rotary_width(self) -> int:
        """How many leading channels of a head RoPE turns: all."""
        return self.head_width

    def layer_plan(self) -> tuple[LayerPlan, ...]:
        """Every layer is causal without a window, with RoPE."""
        return (LayerPlan(window=None, rope=True),) * self.layers

    def shape(self, seq: int) -> Shape:
        """What `science.flops` needs to count a forward pass over sequences of `seq` tokens."""
        return Shape(
            seq=seq,
            hidden=self.hidden,
            vocab=self.vocab,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_width,
            windows=tuple(plan.window for plan in self.layer_plan()),
            mlp_width=self.mlp_width,
        )

    def param_count(self) -> int:
        """All parameters, embedding included (once, where tied)."""
        width, kv_width = self.heads * self.head_width, self.kv_heads * self.head_width
        attention = self.hidden * (2 * width + 2 * kv_width)
        attention += (width + 2 * kv_width + self.hidden) if self.biases else 0
        attention += 2 * self.head_width if self.qk_norm else 0
        block = attention + 3 * self.hidden * self.mlp_width + 2 * self.hidden
        return self.layers * block + self.hidden + (1 if self.tied else 2) * self.vocab * self.hidden

    def active_param_count(self) -> int:
        """Parameters that a token touches: all of them."""
        return self.param_count()


@dataclass(frozen=True)
class Grug:
    """The mixture-of-experts decoder (Marin's June recipe); every part is a field.

    >>> model = Grug.sized(256, vocab=8192)
    >>> model.param_count(), model.active_param_count()
    (7777304, 6007832)
    """

    vocab: int
    """Rows of the embedding and columns of the LM head (never tied)."""
    hidden: int
    """Width of the residual stream."""
    layers: int
    """Blocks, >= 1; each is a mixture of experts."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads; divides `heads`."""
    experts: int
    """Routed experts of a layer, >= top_k + 1 (the runner-up is the router's threshold)."""
    top_k: int
    """Experts that a token uses, >= 1."""
    expert_width: int
    """Width of a routed SwiGLU expert."""
    shared_width: int | None
    """Width of the expert that every token passes; None = off."""
    head_dim: int | None = None
    """Width of a head, even; None = hidden / heads."""
    window: int | None = 128
    """Positions seen by the short layers, themselves included; None = every layer sees all."""
    long_every: int = 4
    """Each layer i with i % long_every == long_every - 1 sees all positions, and the last one always."""
    long_rope: bool = False
    """Whether the long layers turn q and k too; False = position-free (NoPE)."""
    rope_fraction: float = 0.5
    """Share of the head width that RoPE turns, 0 < … <= 1; the rest is position-free."""
    rope_theta: float = 10_000.0
    """Base of the rotary wavelengths, > 0."""
    qk_norm: bool = True
    """Whether q and k pass a norm without weights (eps 1e-6) before RoPE."""
    qk_mult: float = 1.3
    """Factor of q after norm and RoPE, on top of 1/sqrt(head width), > 0."""
    exclusive_attention: bool = True
    """XSA: take out of each head's output what lies along the token's own value."""
    head_gate: bool = True
    """Whether each head's output is scaled by 2 sigmoid(x @ gate), 1 at the start."""
    norm_gate_rank: int | None = 32
    """GatedNorm: rank of the sigmoid gate after every RMSNorm; None = plain norms."""
    router_balance: bool = True
    """QB: a bias per expert, set to the quantile of the last step's logits that would balance the load."""
    combine_scale: float = 2.5
    """The combine weights of a token's experts add up to this, > 0."""
    capacity_factor: float = 1.25
    """Slots of an expert over its fair share of the tokens; what does not fit is dropped, > 0."""
    experts_by: Experts = Experts.BATCHED
    """How the experts are computed in training; decoding with a cache never drops."""
    norm_eps: float = 1e-5
    """Added to the mean square in a norm with weights, > 0."""
    max_seq: int = 4096
    """Longest sequence the model is meant for; written to the exported config."""

    def __post_init__(self) -> None:
        _check_positive(self, "vocab", "hidden", "layers", "heads", "kv_heads", "experts", "top_k")
        _check_positive(self, "expert_width", "shared_width", "window", "long_every", "norm_gate_rank")
        _check_positive(
            self, "rope_theta", "qk_mult", "combine_scale", "capacity_factor", "norm_eps", "max_seq"
        )
        _check_heads(self)
        if not 0 < self.rope_fraction <= 1:
            raise ConfigError(
                f"rope_fraction={self.rope_fraction} is no share of a head's width, so RoPE has nothing to "
                "turn. Choose a number above 0 and up to 1, such as 0.5."
            )
        _check_rotary(self.head_width, self.rotary_width)
        if self.top_k >= self.experts:
            raise ConfigError(
                f"top_k={self.top_k} with experts={self.experts} leaves no runner-up, whose score is the "
                f"router's threshold. Choose top_k up to {self.experts - 1}, or more experts."
            )

    @staticmethod
    def sized(
        hidden: int,
        *,
        vocab: int,
        layers: int | None = None,
        experts: int = 8,
        top_k: int = 2,
        window: int | None = 128,
    ) -> "Grug":
        """A Grug of that width by the recipe's rules: depth from width, GQA 4:1, experts half as wide."""
        heads, kv_heads = _heads(hidden)
        return Grug(
            vocab=vocab,
            hidden=hidden,
            layers=layers or _depth(hidden),
            heads=heads,
            kv_heads=kv_heads,
            experts=experts,
            top_k=top_k,
            expert_width=_round_up(hidden / 2, 32),
            shared_width=hidden,
            window=window,
            norm_gate_rank=max(8, min(128, hidden // 8)),
        )

    @property
    def head_width(self) -> int:
        """Width of a head, derived from `hidden` where not given."""
        return self.head_dim or self.hidden // self.heads

    @property
    def rotary_width(self) -> int:
        """How many leading channels of a head RoPE turns."""
        return int(self.head_width * self.rope_fraction)

    def layer_plan(self) -> tuple[LayerPlan, ...]:
        """Windowed layers with RoPE; every `long_every`-th and the last see all."""
        return tuple(self._plan(layer) for layer in range(self.layers))

    def _plan(self, layer: int) -> LayerPlan:
        is_long = layer % self.long_every == self.long_every - 1 or layer == self.layers - 1
        return LayerPlan(window=None if is_long else self.window, rope=self.long_rope or not is_long)

    def shape(self, seq: int) -> Shape:
        """What `science.flops` needs to count a forward pass over sequences of `seq` tokens."""
        return Shape(
            seq=seq,
            hidden=self.hidden,
            vocab=self.vocab,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_width,
            windows=tuple(plan.window for plan in self.layer_plan()),
            mlp_width=self.top_k * self.expert_width + (self.shared_width or 0),
            experts=self.experts,
            norm_gate_rank=self.norm_gate_rank or 0,
            head_gates=self.head_gate,
        )

    def param_count(self) -> int:
        """All parameters: embedding, head, every expert, and the router's bias, which no gradient sets."""
        return self._count(self.experts)

    def active_param_count(self) -> int:
        """Parameters that one token touches: `top_k` of the experts, and all else."""
        return self._count(self.top_k)

    def _count(self, used: int) -> int:
        width, kv_width = self.heads * self.head_width, self.kv_heads * self.head_width
        norm = self.hidden + 2 * self.hidden * (self.norm_gate_rank or 0)
        attention = self.hidden * (2 * width + 2 * kv_width + (self.heads if self.head_gate else 0))
        router = (self.hidden + 1) * self.experts
        mlp = 3 * self.hidden * (used * self.expert_width + (self.shared_width or 0))
        block = 2 * norm + attention + router + mlp
        return self.layers * block + 2 * norm + 2 * self.vocab * self.hidden


Model = Dense | Grug


def _depth(hidden: int) -> int:
    """Marin's depth rule, with a floor of 2 so that tiny models keep a windowed and a long layer."""
    return max(2, round(hidden / (64 + 4 * math.log2(hidden) - 9)))


def _heads(hidden: int) -> tuple[int, int]:
    """Query and key-value heads: 64 wide where that leaves four, else 32; the largest GQA share <= 1/4."""
    if hidden % 32:
        raise ConfigError(
            f"hidden={hidden} is no multiple of 32, so it can't be cut into heads 32 or 64 wide. "
            f"Choose {_round_up(hidden, 32)}, or give every size yourself."
        )
    heads = hidden // (64 if hidden % 64 == 0 and hidden >= 256 else 32)
    return heads, max(k for k in range(1, heads + 1) if heads % k == 0 and (k <= heads / 4 or k == 1))


def _round_up(value: int | float, multiple: int) -> int:
    return max(multiple, math.ceil(value / multiple) * multiple)


def _check_positive(config: Model, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise ConfigError(
                f"{type(config).__name__}.{name}={value} must be above 0, or the model can't be built. "
                "Give a positive number" + (" or None to switch it off." if name in _OPTIONAL else ".")
            )


_OPTIONAL = ("shared_width", "window", "norm_gate_rank")


def _check_heads(config: Model) -> None:
    if config.head_dim is None and config.hidden % config.heads:
        choices = ", ".join(str(n) for n in range(1, config.hidden + 1) if config.hidden % n == 0 and n <= 64)
        raise ConfigError(
            f"heads={config.heads} does not divide hidden={config.hidden}, so heads would differ in size. "
            f"Choose heads from {choices}, or set head_dim."
        )
    if config.heads % config.kv_heads:
        choices = ", ".join(str(n) for n in range(1, config.heads + 1) if config.heads % n == 0)
        raise ConfigError(
            f"kv_heads={config.kv_heads} does not divide heads={config.heads}, so query heads can't share "
            f"keys evenly. Choose kv_heads from {choices}."
        )


def _check_rotary(head_width: int, rotary_width: int) -> None:
    if head_width < 2 or rotary_width < 2 or rotary_width % 2:
        raise ConfigError(
            f"RoPE would turn {rotary_width} of a head's {head_width} channels, but it turns pairs. "
            "Choose heads, head_dim or rope_fraction so that this number is even and at least 2."
        )
