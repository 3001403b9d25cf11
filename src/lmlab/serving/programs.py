"""The two compiled programs of the engine: prefill a chunk of one slot, decode one token of every slot.

State (cache, last tokens, dials) stays on the device and is donated from call to call. Chunks are padded to a
power of two, and the cache grows by doubling, so that few shapes are ever compiled.
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
from lmlab.models.forward import forward, logits
from lmlab.models.layers import Cache, Params
from lmlab.serving.protocol import MOST_LOGPROBS, Sampling
from lmlab.serving.sampling import Dials, Picked, likeliest, pick, stream_key
from lmlab.serving.sequence import Token

SHORTEST_CHUNK, LONGEST_CHUNK = 16, 256
FIRST_LENGTH = 512


class State(NamedTuple):
    """All that lives between steps."""

    cache: Cache
    token: Int[Array, " slots"]
    """The newest token of each slot, not yet in the cache."""
    dials: Dials


class Scores(NamedTuple):
    """Log-probabilities of given tokens, and the likeliest ones at their places."""

    logprob: Float[Array, " chunk"]
    top_ids: Int[Array, "chunk top"]
    top_logprobs: Float[Array, "chunk top"]


AnyArray = Array | np.ndarray  # from the host outside a compiled program, on the device inside


class Part(NamedTuple):
    """A chunk as the compiled program sees it."""

    slot: Int[AnyArray, ""]
    start: Int[AnyArray, ""]
    count: Int[AnyArray, ""]
    tokens: Int[AnyArray, " chunk"]
    following: Int[AnyArray, " chunk"]
    temperature: Float[AnyArray, ""]
    top_p: Float[AnyArray, ""]
    stream: UInt32[AnyArray, " 3"]
    wants_top: Bool[AnyArray, ""]


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
        self._params = jax.device_put(params)
        self._static = {"config": config, "dtype": dtype, "top": min(MOST_LOGPROBS, config.vocab)}
        self._used = np.zeros(slots, np.int64)
        self._length = min(FIRST_LENGTH, _room_for(max_length))
        self._state = State(
            cache=init_cache(config, slots, self._length, dtype),
            token=jnp.zeros(slots, jnp.int32),
            dials=Dials(jnp.zeros(slots), jnp.ones(slots), jnp.zeros((slots, 2), jnp.uint32)),
        )

    def prefill(self, chunk: Chunk, score: bool) -> tuple[list[Token], list[Token | None]]:
        """Put a chunk into its slot: returns its `following` (scored on request), and the token after it.

        The picked token means something only after the prompt's last chunk; it is None if its logits were
        not finite.
        """
        count = len(chunk.tokens)
        padded = max(SHORTEST_CHUNK, 1 << (count - 1).bit_length())
        self._make_room(chunk.start + padded)
        sampling = chunk.sampling
        seed = sampling.seed & (2**64 - 1)
        part = Part(
            slot=np.array(chunk.slot, np.int32),
            start=np.array(chunk.start, np.int32),
            count=np.array(count, np.int32),
            tokens=_pad(chunk.tokens, padded),
            following=_pad(chunk.following, padded),
            temperature=np.array(sampling.temperature, np.float32),
            top_p=np.array(sampling.top_p, np.float32),
            stream=np.array([seed & 0xFFFFFFFF, seed >> 32, sampling.choice], np.uint32),
            wants_top=np.array(bool(sampling.logprobs)),
        )
        self._state, picked, scores = _prefill(self._params, self._state, part, score=score, **self._static)
        self._used[chunk.slot] = chunk.start + count
        return _scored(chunk, scores), _picked(picked, [sampling.logprobs or 0])

    def decode(self, active: Sequence[bool], alternatives: Sequence[int]) -> list[Token | None]:
        """One more token for every active slot, with that many of the likeliest beside it."""
        self._make_room(1 + int(self._used.max(where=np.array(active), initial=0)))
        self._state, picked = _decode(
            self._params, self._state, np.array(active), np.array(any(alternatives)), **self._static
        )
        self._used += np.array(active)
        return _picked(picked, alternatives)

    def _make_room(self, needed: int) -> None:
        """Double the cache until `needed` tokens fit in a slot."""
        length = max(self._length, _room_for(needed))
        if length > self._length:
            self._state = _grow(self._state, by=length - self._length)
            self._length = length


def _room_for(tokens: int) -> int:
    return 1 << (tokens - 1).bit_length()


def _pad(tokens: Sequence[int], length: int) -> np.ndarray:
    return np.pad(np.array(tokens, np.int32), (0, length - len(tokens)))


def _scored(chunk: Chunk, scores: Scores | None) -> list[Token]:
    if scores is None:
        return [Token(token, None) for token in chunk.following]
    host = jax.device_get(scores)
    alternatives = chunk.sampling.logprobs or 0
    return [
        Token(token, float(host.logprob[i]), _top(host.top_ids[i], host.top_logprobs[i], alternatives))
        for i, token in enumerate(chunk.following)
    ]


def _picked(picked: Picked, alternatives: Sequence[int]) -> list[Token | None]:
    host = jax.device_get(picked)
    return [
        Token(
            int(host.token[i]),
            float(host.logprob[i]),
            _top(host.top_ids[i], host.top_logprobs[i], wanted),
        )
        if host.is_finite[i]
        else None
        for i, wanted in enumerate(alternatives)
    ]


def _top(ids: np.ndarray, logprobs: np.ndarray, wanted: int) -> tuple[tuple[int, float], ...]:
    return tuple(zip(ids[:wanted].tolist(), logprobs[:wanted].tolist(), strict=True))


@partial(jax.jit, static_argnames=("config", "dtype", "top", "score"), donate_argnums=1)
def _prefill(
    params: Params, state: State, part: Part, *, config: Model, dtype: Any, top: int, score: bool
) -> tuple[State, Picked, Scores | None]:
    whole = state.cache
    row = Cache(
        *(jax.lax.dynamic_slice_in_dim(kept, part.slot, 1, axis=1) for kept in (whole.keys, whole.values)),
        lengths=part.start[None],
    )
    output = forward(params, config, part.tokens[None], cache=row, dtype=dtype)
    hidden = output.hidden[0]
    scores = None
    if score:
        logprobs = jax.nn.log_softmax(logits(params, config, hidden))
        top_logprobs, top_ids = likeliest(logprobs, part.wants_top, top)
        own = jnp.take_along_axis(logprobs, part.following[:, None], axis=-1)[:, 0]
        scores = Scores(own, top_ids, top_logprobs)
    end = part.start + part.count
    dials = Dials(part.temperature[None], part.top_p[None], stream_key(part.stream)[None])
    last = logits(params, config, jax.lax.dynamic_slice_in_dim(hidden, part.count - 1, 1))
    picked = pick(last, dials, end[None], part.wants_top, top)
    slot = part.slot
    return (
        State(
            cache=Cache(
                keys=jax.lax.dynamic_update_slice_in_dim(whole.keys, output.cache.keys, slot, axis=1),
                values=jax.lax.dynamic_update_slice_in_dim(whole.values, output.cache.values, slot, axis=1),
                lengths=whole.lengths.at[slot].set(end),  # the padding stays behind, to be overwritten
            ),
            token=state.token.at[slot].set(picked.token[0]),
            dials=Dials(*(old.at[slot].set(new[0]) for old, new in zip(state.dials, dials, strict=True))),
        ),
        picked,
        scores,
    )


@partial(jax.jit, static_argnames=("config", "dtype", "top"), donate_argnums=1)
def _decode(
    params: Params,
    state: State,
    active: Bool[AnyArray, " slots"],
    wants_top: Bool[AnyArray, ""],
    *,
    config: Model,
    dtype: Any,
    top: int,
) -> tuple[State, Picked]:
    lengths = state.cache.lengths
    output = forward(params, config, state.token[:, None], cache=state.cache, dtype=dtype)
    end = lengths + active
    picked = pick(logits(params, config, output.hidden[:, 0]), state.dials, end, wants_top, top)
    token = jnp.where(active, picked.token, state.token)
    # A slot that is idle or being prefilled keeps its length, so what was appended is overwritten later.
    return State(output.cache._replace(lengths=end), token, state.dials), picked


@partial(jax.jit, static_argnames="by")
def _grow(state: State, *, by: int) -> State:
    """The same state with `by` more positions in every slot."""
    pad = ((0, 0), (0, 0), (0, by), (0, 0), (0, 0))
    keys, values = jnp.pad(state.cache.keys, pad), jnp.pad(state.cache.values, pad)
    return state._replace(cache=Cache(keys, values, state.cache.lengths))
