"""The compiled programs of the engine: prefill a chunk of one slot, choose its first token, decode all slots.

State (cache, last tokens, dials) stays on the device and is donated from call to call. Chunks are padded to
three sizes, and the cache grows by doubling, so that few shapes are ever compiled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from lmlab.models.cache import init_cache
from lmlab.models.config import Model
from lmlab.models.decoder import forward, logits
from lmlab.models.layers import Cache, Params
from lmlab.serving.protocol import MOST_LOGPROBS, Sampling
from lmlab.serving.sampling import Dials, Picked, likeliest, pick, stream_key
from lmlab.serving.sequence import Token

CHUNKS = (16, 64, 256)
LONGEST_CHUNK = CHUNKS[-1]
FIRST_LENGTH = 512


class State(NamedTuple):
    """All that lives between steps."""

    keys: tuple[Float[Array, "slots length kv_heads head_dim"], ...]
    """The cached keys of each layer."""
    values: tuple[Float[Array, "slots length kv_heads head_dim"], ...]
    lengths: Int[Array, " slots"]
    """Tokens of each slot that are in the cache."""
    token: Int[Array, " slots"]
    """The newest token of each slot, not yet in the cache."""
    dials: Dials


class Scores(NamedTuple):
    """Log-probabilities of given tokens, and the likeliest ones at their places."""

    logprob: Float[Array, " chunk"]
    top_ids: Int[Array, "chunk top"]
    top_logprobs: Float[Array, "chunk top"]


class Part(NamedTuple):
    """A chunk as the compiled program sees it."""

    slot: Int[Array, ""]
    start: Int[Array, ""]
    count: Int[Array, ""]
    tokens: Int[Array, " chunk"]
    following: Int[Array, " chunk"]


@dataclass(frozen=True)
class Chunk:
    """A piece of a prompt on its way into a slot."""

    slot: int
    start: int
    """How many tokens of the prompt are in the cache already."""
    tokens: Sequence[int]
    following: Sequence[int]
    """The prompt's token after each of `tokens`, to be scored; one fewer at the end of the prompt."""
    sampling: Sampling


class Programs:
    """Weights and state on the device, and the calls that move them on. Only one thread may use it."""

    def __init__(
        self, config: Model, params: Params, *, slots: int, max_length: int, dtype: Any = jnp.float32
    ) -> None:
        self.config = config
        self.slots = slots
        self.max_length = max_length
        self._params = jax.device_put(_split_layers(params))
        self._static = {"config": config, "dtype": dtype, "top": min(MOST_LOGPROBS, config.vocab)}
        self._used = np.zeros(slots, np.int64)
        self._length = min(FIRST_LENGTH, _room_for(max_length))
        self._state = _empty(config, slots, self._length, dtype)
        self._last_logits = jax.device_put(np.zeros((1, config.vocab), np.float32))

    def prefill(self, chunk: Chunk, score: bool) -> list[Token]:
        """Put a chunk into its slot; returns its `following`, with log-probabilities if asked to `score`."""
        count = len(chunk.tokens)
        padded = next(size for size in CHUNKS if size >= count)
        self._make_room(chunk.start + padded)
        part = Part(
            slot=jnp.asarray(chunk.slot, jnp.int32),
            start=jnp.asarray(chunk.start, jnp.int32),
            count=jnp.asarray(count, jnp.int32),
            tokens=_pad(chunk.tokens, padded),
            following=_pad(chunk.following, padded),
        )
        alternatives = chunk.sampling.logprobs or 0
        self._state, self._last_logits, scores = _prefill(
            self._params, self._state, part, jnp.asarray(alternatives > 0), score=score, **self._static
        )
        self._used[chunk.slot] = chunk.start + count
        if scores is None:
            return [Token(token, None) for token in chunk.following]
        return _scored(chunk.following, scores, alternatives)

    def choose(self, slot: int, sampling: Sampling) -> Token | None:
        """The first token after the prompt that was just prefilled; None if its logits are not finite."""
        seed = sampling.seed & (2**64 - 1)
        alternatives = sampling.logprobs or 0
        self._state, picked = _choose(
            self._last_logits,
            self._state,
            jnp.asarray(slot, jnp.int32),
            jnp.asarray([sampling.temperature, sampling.top_p], jnp.float32),
            jnp.asarray([seed & 0xFFFFFFFF, seed >> 32, sampling.choice], jnp.uint32),
            jnp.asarray(alternatives > 0),
            top=self._static["top"],
        )
        return _picked(picked, [alternatives])[0]

    def decode(self, active: Sequence[bool], alternatives: Sequence[int]) -> list[Token | None]:
        """One more token for every active slot, with that many of the likeliest beside it.

        A token is None where its logits are not finite; those of inactive slots mean nothing.
        """
        on = np.array(active)
        self._make_room(1 + int(self._used.max(where=on, initial=0)))
        self._state, picked = _decode(
            self._params, self._state, jnp.asarray(on), jnp.asarray(any(alternatives)), **self._static
        )
        self._used += on
        return _picked(picked, alternatives)

    def _make_room(self, needed: int) -> None:
        """Double the cache until `needed` tokens fit in a slot."""
        length = max(self._length, _room_for(needed))
        if length > self._length:
            self._state = _grow(self._state, by=length - self._length)
            self._length = length


def _room_for(tokens: int) -> int:
    return 1 << (tokens - 1).bit_length()


def _pad(tokens: Sequence[int], length: int) -> Int[Array, " length"]:
    return jnp.asarray([*tokens, *[0] * (length - len(tokens))], jnp.int32)


def _scored(tokens: Sequence[int], scores: Scores, alternatives: int) -> list[Token]:
    logprobs = np.asarray(scores.logprob).tolist()
    tops = _tops(scores.top_ids, scores.top_logprobs, [alternatives] * len(tokens))
    return [Token(token, logprob, top) for token, logprob, top in zip(tokens, logprobs, tops, strict=False)]


def _picked(picked: Picked, alternatives: Sequence[int]) -> list[Token | None]:
    tokens, logprobs = np.asarray(picked.token).tolist(), np.asarray(picked.logprob).tolist()
    tops = _tops(picked.top_ids, picked.top_logprobs, alternatives)
    finite = np.asarray(picked.is_finite).tolist()
    return [
        Token(token, logprob, top) if is_finite else None
        for token, logprob, top, is_finite in zip(tokens, logprobs, tops, finite, strict=True)
    ]


def _tops(
    ids: Int[Array, "rows top"], logprobs: Float[Array, "rows top"], wanted: Sequence[int]
) -> list[tuple[tuple[int, float], ...]]:
    """The first few of each row; nothing is fetched from the device if nobody wants any."""
    most = max(wanted, default=0)
    if most == 0:
        return [()] * len(wanted)
    pairs = zip(np.asarray(ids)[:, :most].tolist(), np.asarray(logprobs)[:, :most].tolist(), strict=True)
    return [tuple(zip(*pair, strict=True))[:few] for pair, few in zip(pairs, wanted, strict=False)]


# Layers stay apart between steps. The models want them stacked and take them apart again: XLA folds the two
# into nothing, where slicing a stacked argument would copy all weights and the whole cache in every step
# (dense 256x3, 8 slots of 512, one busy core: 5.0 -> 3.4 ms CPU a step).


def _split_layers(params: Params) -> Params:
    return {**params, "layers": jax.tree.map(lambda leaf: list(np.asarray(leaf)), params["layers"])}


def _stack_layers(params: Params) -> Params:
    stacked = jax.tree.map(jnp.stack, params["layers"], is_leaf=lambda node: isinstance(node, list))
    return {**params, "layers": stacked}


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _empty(config: Model, slots: int, length: int, dtype: Any) -> State:
    cache = init_cache(config, slots, length, dtype)
    dials = Dials(jnp.zeros(slots), jnp.ones(slots), jnp.zeros((slots, 2), jnp.uint32))
    return State(tuple(cache.keys), tuple(cache.values), cache.lengths, jnp.zeros(slots, jnp.int32), dials)


@partial(jax.jit, static_argnames=("config", "dtype", "top", "score"), donate_argnums=1)
def _prefill(
    params: Params,
    state: State,
    part: Part,
    wants_top: Bool[Array, ""],
    *,
    config: Model,
    dtype: Any,
    top: int,
    score: bool,
) -> tuple[State, Float[Array, "1 vocab"], Scores | None]:
    params, slot = _stack_layers(params), part.slot
    keys, values = (
        jnp.stack([jax.lax.dynamic_slice_in_dim(layer, slot, 1) for layer in layers])
        for layers in (state.keys, state.values)
    )
    row = Cache(keys, values, part.start[None])
    output = forward(params, config, part.tokens[None], cache=row, dtype=dtype)
    assert output.cache is not None
    hidden = output.hidden[0]
    scores = None
    if score:
        logprobs = jax.nn.log_softmax(logits(params, config, hidden))
        top_logprobs, top_ids = likeliest(logprobs, wants_top, top)
        own = jnp.take_along_axis(logprobs, part.following[:, None], axis=-1)[:, 0]
        scores = Scores(own, top_ids, top_logprobs)
    last = logits(params, config, jax.lax.dynamic_slice_in_dim(hidden, part.count - 1, 1))
    state = state._replace(
        keys=_put_rows(state.keys, output.cache.keys, slot),
        values=_put_rows(state.values, output.cache.values, slot),
        # The padding stays behind what counts, to be overwritten.
        lengths=state.lengths.at[slot].set(part.start + part.count),
    )
    return state, last, scores


@partial(jax.jit, static_argnames="top", donate_argnums=1)
def _choose(
    last_logits: Float[Array, "1 vocab"],
    state: State,
    slot: Int[Array, ""],
    temperature_and_top_p: Float[Array, " 2"],
    stream: UInt32[Array, " 3"],
    wants_top: Bool[Array, ""],
    *,
    top: int,
) -> tuple[State, Picked]:
    temperature, top_p = temperature_and_top_p
    dials = Dials(temperature, top_p, stream_key(stream))
    row = jax.tree.map(lambda dial: dial[None], dials)
    picked = pick(last_logits, row, state.lengths[slot][None], wants_top, top)
    kept = jax.tree.map(lambda old, new: old.at[slot].set(new), state.dials, dials)
    return state._replace(token=state.token.at[slot].set(picked.token[0]), dials=kept), picked


def _put_rows(
    layers: tuple[Array, ...], rows: Float[Array, "layers 1 length kv_heads head_dim"], slot: Int[Array, ""]
) -> tuple[Array, ...]:
    return tuple(
        jax.lax.dynamic_update_slice_in_dim(layer, row, slot, axis=0)
        for layer, row in zip(layers, rows, strict=True)
    )


@partial(jax.jit, static_argnames=("config", "dtype", "top"), donate_argnums=1)
def _decode(
    params: Params,
    state: State,
    active: Bool[Array, " slots"],
    wants_top: Bool[Array, ""],
    *,
    config: Model,
    dtype: Any,
    top: int,
) -> tuple[State, Picked]:
    params = _stack_layers(params)
    cache = Cache(jnp.stack(state.keys), jnp.stack(state.values), state.lengths)
    output = forward(params, config, state.token[:, None], cache=cache, dtype=dtype)
    assert output.cache is not None
    # A slot that is idle or being prefilled keeps its length, so what was appended is overwritten later.
    lengths = state.lengths + active
    picked = pick(logits(params, config, output.hidden[:, 0]), state.dials, lengths, wants_top, top)
    token = jnp.where(active, picked.token, state.token)
    keys, values = tuple(output.cache.keys), tuple(output.cache.values)
    return State(keys, values, lengths, token, state.dials), picked


@partial(jax.jit, static_argnames="by")
def _grow(state: State, *, by: int) -> State:
    """The same state with `by` more positions in every slot."""
    pad = ((0, 0), (0, by), (0, 0), (0, 0))
    keys, values = jax.tree.map(lambda layer: jnp.pad(layer, pad), (state.keys, state.values))
    return state._replace(keys=keys, values=values)
