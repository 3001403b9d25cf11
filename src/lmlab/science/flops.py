"""FLOPs per token from a model's own layer plan, so that windows, routers and gates are counted as computed.

Multiply-adds of matrix products count 2, the softmax 3 per score; norms, activations and lookups are left
out, as everyone does. The `Shape` comes from `model.shape(seq)`, never from numbers typed a second time.
"""

from dataclasses import dataclass

TRAINING_FACTOR = 3  # forward, and twice that for the gradients of inputs and of weights


@dataclass(frozen=True)
class Shape:
    """What costs FLOPs in a decoder: every field is an active size, so for a MoE the top-k experts."""

    seq: int
    """Tokens in a sequence."""
    hidden: int
    """Width of the residual stream."""
    vocab: int
    """Columns of the LM head."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads."""
    head_dim: int
    """Width of a head."""
    windows: tuple[int | None, ...]
    """Per layer, how many positions a query sees, itself included; None = all before it."""
    mlp_width: int
    """Sum of the widths of the SwiGLU units that a token passes in a layer (top-k experts + shared)."""
    experts: int = 0
    """Columns of the router; 0 = no router."""
    norm_gate_rank: int = 0
    """Rank of the gate after each norm (two per layer, embedding and final); 0 = plain norms."""
    head_gates: bool = False
    """Whether a scalar per head is computed from the layer's input."""


@dataclass(frozen=True)
class Flops:
    """Forward FLOPs of one token, by what spends them."""

    projections: float
    attention: float
    mlp: float
    router: float
    gates: float
    head: float

    @property
    def body(self) -> float:
        """Everything but the LM head."""
        return self.projections + self.attention + self.mlp + self.router + self.gates

    @property
    def forward(self) -> float:
        """One forward pass, LM head included."""
        return self.body + self.head

    @property
    def training(self) -> float:
        """One training token: forward and backward, without recomputation."""
        return TRAINING_FACTOR * self.forward


def flops_per_token(shape: Shape, *, full_attention: bool = False) -> Flops:
    """Forward FLOPs per token, averaged over a sequence of `shape.seq` tokens (Marin's count, science 1.10).

    `full_attention=True` counts each layer as fully causal: reports print both, since ignoring windows
    overstates the model FLOPs utilization.

    >>> dense = Shape(4, hidden=8, vocab=16, heads=2, kv_heads=2, head_dim=4, windows=(None,), mlp_width=32)
    >>> flops_per_token(dense).forward
    2399.0
    """
    layers = len(shape.windows)
    width = shape.heads * shape.head_dim
    kv_width = shape.kv_heads * shape.head_dim
    spans = [mean_span(shape.seq, None if full_attention else window) for window in shape.windows]
    gates_per_layer = 2 * shape.hidden * shape.heads if shape.head_gates else 0
    norms = 2 * layers + 2
    return Flops(
        projections=layers * 2.0 * shape.hidden * (2 * width + 2 * kv_width),
        attention=sum(4 * span * width + 3 * span * shape.heads for span in spans),
        mlp=layers * 2.0 * 3 * shape.hidden * shape.mlp_width,
        router=layers * 2.0 * shape.hidden * shape.experts,
        gates=layers * gates_per_layer + norms * 4.0 * shape.hidden * shape.norm_gate_rank,
        head=2.0 * shape.hidden * shape.vocab,
    )


def mean_span(seq: int, window: int | None) -> float:
    """Mean number of keys that a query attends to, causal, itself included.

    >>> mean_span(4, None), mean_span(4, 2)
    (2.5, 1.75)
    """
    span = seq if window is None else min(window, seq)
    return (span * (span + 1) / 2 + (seq - span) * span) / seq


def utilization(shape: Shape, tokens_per_s: float, peak_flops: float) -> float:
    """Model FLOPs utilization of training: a share of `peak_flops` (per second, all devices together)."""
    return flops_per_token(shape).training * tokens_per_s / peak_flops
