"""Models as Hugging Face folders: names, configs, ending tokens, and a manifest that finds a flipped byte.

`Dense` is written as the architecture that computes the same (Llama, or Qwen3 with QK-norm) and read from
such folders of others; `Grug` has a name of its own, `GrugForCausalLM`, with every config field.
"""

import hashlib
import json
import os
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from lmlab.core.config import canonical, decode, encode
from lmlab.core.errors import ArtifactError, ConfigError
from lmlab.models.config import Dense, Grug, Model
from lmlab.models.decoder import init_params
from lmlab.models.layers import Params
from lmlab.storage import Path, read_json, write_json

Folder = str | os.PathLike[str]

FORMAT = 1
MANIFEST = "MANIFEST.json"
WEIGHTS = "model.safetensors"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")

# Where each parameter of ours stands in a folder. A name with {layer} or {expert} is one tensor of a stack;
# matrices are transposed ([out, in] there, [in, out] here), but for the embedding.
ATTENTION = {
    f"layers/attention/{ours}": f"model.layers.{{layer}}.self_attn.{theirs}"
    for ours, theirs in {
        "q": "q_proj.weight",
        "k": "k_proj.weight",
        "v": "v_proj.weight",
        "out": "o_proj.weight",
        "q_bias": "q_proj.bias",
        "k_bias": "k_proj.bias",
        "v_bias": "v_proj.bias",
        "out_bias": "o_proj.bias",
        "q_norm": "q_norm.weight",
        "k_norm": "k_norm.weight",
        "head_gate": "head_gate.weight",
    }.items()
}
NORMS = {
    "embed/norm": "model.embed_norm",
    "layers/attention_norm": "model.layers.{layer}.input_layernorm",
    "layers/mlp_norm": "model.layers.{layer}.post_attention_layernorm",
    "final_norm": "model.norm",
}
MLPS = {
    "layers/mlp": "model.layers.{layer}.mlp",
    "layers/shared": "model.layers.{layer}.mlp.shared_expert",
    "layers/experts": "model.layers.{layer}.mlp.experts.{expert}",
}
NAMES = {
    "embed/weight": "model.embed_tokens.weight",
    "head": "lm_head.weight",
    "router_bias": "model.layers.{layer}.mlp.router.bias",
    "layers/router": "model.layers.{layer}.mlp.router.weight",
    **ATTENTION,
    **{ours: f"{theirs}.weight" for ours, theirs in NORMS.items()},
    **{
        f"{ours}/{part}": f"{theirs}.{name}"
        for ours, theirs in NORMS.items()
        for part, name in (("weight", "weight"), ("down", "gate_down.weight"), ("up", "gate_up.weight"))
    },
    **{
        f"{ours}/{part}": f"{theirs}.{part}_proj.weight"
        for ours, theirs in MLPS.items()
        for part in ("gate", "up", "down")
    },
}


@dataclass(frozen=True)
class Manifest:
    """What a folder holds: its files by sha256, and one hash over all of them."""

    format: int
    """Version of this description."""
    architecture: str
    """Name in `config.json`."""
    params: int
    """Parameters, embedding included."""
    size_bytes: int
    """All files together."""
    tree_sha256: str
    """Hash over names and hashes: two folders with the same one are the same model."""
    files: dict[str, str]
    """File name -> sha256."""


class Loaded(NamedTuple):
    """A model read from a folder."""

    config: Model
    params: Params
    eos_ids: tuple[int, ...]
    """Every token that ends an answer."""


def export_folder(
    config: Model, params: Params, tokenizer_dir: Folder, out_dir: Folder, *, stop_ids: tuple[int, ...] = ()
) -> Manifest:
    """Write weights, configs and tokenizer; the manifest, written last, makes the folder complete.

    Routers' pending bias must be applied before (`apply_pending`). `stop_ids` are tokens that end an answer
    besides the tokenizer's own, as a chat template's turn ends do. Raises ConfigError when sizes or ending
    tokens do not fit together.
    """
    source, out = Path(tokenizer_dir), Path(out_dir)
    tokenizer = {name: (source / name).read_bytes() for name in TOKENIZER_FILES}
    eos_ids = sorted({_tokenizer_eos(tokenizer), *stop_ids})
    _check_vocabulary(config, json.loads(tokenizer["tokenizer.json"]), eos_ids)
    tensors = to_tensors(config, params)
    written = {
        **tokenizer,
        "config.json": _pretty(_to_config(config, eos_ids)),
        "generation_config.json": _pretty({"eos_token_id": eos_ids, "do_sample": True}),
        WEIGHTS: safetensors.numpy.save(tensors, metadata={"format": "pt"}),
    }
    for name in sorted(written):
        (out / name).write_bytes(written[name])
    hashes = {name: hashlib.sha256(written[name]).hexdigest() for name in sorted(written)}
    manifest = Manifest(
        format=FORMAT,
        architecture=_architecture(config),
        params=config.param_count(),
        size_bytes=sum(len(data) for data in written.values()),
        tree_sha256=_tree_hash(hashes),
        files=hashes,
    )
    write_json(out / MANIFEST, encode(manifest))
    return manifest


def verify_folder(folder: Folder) -> Manifest:
    """Check every file against the manifest, and that all sources agree on what ends an answer.

    Raises ArtifactError naming the file that is missing, changed, or at odds with another.
    """
    place = Path(folder)
    if not (place / MANIFEST).exists():
        raise ArtifactError(
            f"{place} has no {MANIFEST}, so it is no finished export and can't be verified. Export it again."
        )
    manifest = decode(Manifest, read_json(place / MANIFEST))
    for name, expected in manifest.files.items():
        data = (place / name).read_if_present()
        if data is None:
            raise ArtifactError(f"{place / name} is missing, though the manifest names it. Export it again.")
        found = hashlib.sha256(data).hexdigest()
        if found != expected:
            raise ArtifactError(
                f"{place / name} has sha256 {found[:12]}…, the manifest says {expected[:12]}…: it changed "
                "after the export. Export it again."
            )
    if _tree_hash(manifest.files) != manifest.tree_sha256:
        raise ArtifactError(f"{place / MANIFEST} does not hash to its own tree_sha256. Export it again.")
    eos_ids(place)
    return manifest


def load_folder(folder: Folder) -> Loaded:
    """Config, float32 parameters and ending tokens; refuses unknown, missing or misshapen tensors.

    Reads our own folders and those of other `LlamaForCausalLM` and `Qwen3ForCausalLM` models.
    """
    place = Path(folder)
    config = _from_config(read_json(place / "config.json"), place)
    params = from_tensors(config, safetensors.numpy.load((place / WEIGHTS).read_bytes()), where=str(place))
    return Loaded(config, params, eos_ids(place))


def eos_ids(folder: Folder) -> tuple[int, ...]:
    """The tokens that end an answer: `generation_config.json`'s, which must include everyone else's.

    A model that is served without the token it was trained to end with never stops (Marin: 0 of 76 tasks).
    """
    place = Path(folder)
    generation = _as_ids(read_json(place / "generation_config.json").get("eos_token_id"))
    others = {"config.json": _as_ids(read_json(place / "config.json").get("eos_token_id"))}
    if (place / TOKENIZER_FILES[0]).exists():
        files = {name: (place / name).read_bytes() for name in TOKENIZER_FILES}
        others["tokenizer_config.json"] = (_tokenizer_eos(files),)
    for name, ids in others.items():
        if missing := set(ids) - set(generation):
            raise ArtifactError(
                f"{place}: {name} ends answers with token {min(missing)}, generation_config.json with "
                f"{list(generation)}, so generation would not stop. Make eos_token_id hold all of them."
            )
    return generation


def to_tensors(config: Model, params: Params) -> dict[str, np.ndarray]:
    """Parameters under Hugging Face names, float32, sorted."""
    tensors: dict[str, np.ndarray] = {}
    for path, expected in _shapes(config).items():
        value = _at(params, path)
        if value is None or value.shape != expected:
            raise ConfigError(
                f"parameter {path} is {None if value is None else value.shape}, the config says {expected}: "
                "params and config belong to different models. Pass the config that they were made with."
            )
        tensors |= _spread(NAMES[path], np.asarray(value, np.float32), is_matrix=_is_matrix(path))
    return dict(sorted(tensors.items()))


def from_tensors(config: Model, tensors: dict[str, np.ndarray], *, where: str) -> Params:
    """The inverse of `to_tensors`; `where` names the place in errors."""
    left = dict(tensors)
    params: Params = {}
    for path, shape in _shapes(config).items():
        value = _gather(NAMES[path], shape, left, is_matrix=_is_matrix(path), where=where)
        *parents, leaf = path.split("/")
        inner = params
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[leaf] = jnp.asarray(value, jnp.float32)
    if left:
        raise ArtifactError(
            f"{where} holds {len(left)} tensors that {_architecture(config)} does not have, such as "
            f"{min(left)}: the model would be another one. Use a folder of this architecture."
        )
    return params


def _shapes(config: Model) -> dict[str, tuple[int, ...]]:
    tree = jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))
    found = {}
    for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        found["/".join(key.key for key in keys)] = leaf.shape
    return found


def _is_matrix(path: str) -> bool:
    """Whether the last two axes are [in, out] here and [out, in] there."""
    leaf = path.rsplit("/", 1)[-1]
    return path != "embed/weight" and not leaf.endswith(("norm", "bias", "weight"))


def _at(params: Params, path: str) -> Any:
    value: Any = params
    for name in path.split("/"):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _spread(name: str, value: np.ndarray, *, is_matrix: bool) -> dict[str, np.ndarray]:
    """One stacked array as one tensor per layer and expert."""
    for axis in ("layer", "expert"):
        if f"{{{axis}}}" in name:
            parts = [
                _spread(name.replace(f"{{{axis}}}", str(i)), part, is_matrix=is_matrix)
                for i, part in enumerate(value)
            ]
            return {key: tensor for part in parts for key, tensor in part.items()}
    return {name: np.ascontiguousarray(value.T if is_matrix else value)}


def _gather(
    name: str, shape: tuple[int, ...], tensors: dict[str, np.ndarray], *, is_matrix: bool, where: str
) -> np.ndarray:
    """The inverse of `_spread`; takes what it uses out of `tensors`."""
    for axis in ("layer", "expert"):
        if f"{{{axis}}}" in name:
            names = [name.replace(f"{{{axis}}}", str(i)) for i in range(shape[0])]
            return np.stack(
                [_gather(one, shape[1:], tensors, is_matrix=is_matrix, where=where) for one in names]
            )
    tensor = tensors.pop(name, None)
    if tensor is None:
        raise ArtifactError(
            f"{where} has no tensor {name}, so the model would run on made-up weights. Export it again."
        )
    value = tensor.T if is_matrix else tensor
    if value.shape != shape:
        raise ArtifactError(
            f"{where}: {name} is {tensor.shape}, but the config asks for "
            f"{shape[::-1] if is_matrix else shape}: they belong to different models. Export them together."
        )
    return value


def _architecture(config: Model) -> str:
    if isinstance(config, Grug):
        return "GrugForCausalLM"
    return "Qwen3ForCausalLM" if config.qk_norm else "LlamaForCausalLM"


def _to_config(config: Model, eos: list[int]) -> dict[str, Any]:
    common = {"architectures": [_architecture(config)], "dtype": "float32", "eos_token_id": eos}
    if isinstance(config, Grug):
        own = encode(config)
        assert isinstance(own, dict)
        return {**common, "model_type": "grug", **{k: v for k, v in own.items() if k != "type"}}
    return {
        **common,
        "model_type": "qwen3" if config.qk_norm else "llama",
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "intermediate_size": config.mlp_width,
        "tie_word_embeddings": config.tied,
        "attention_bias": config.biases,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_seq,
        "hidden_act": "silu",
    }


def _from_config(stored: dict[str, Any], place: Path) -> Model:
    architecture = (stored.get("architectures") or [None])[0]
    if architecture == "GrugForCausalLM":
        own = {field.name: stored[field.name] for field in fields(Grug) if field.name in stored}
        return decode(Grug, {"type": "Grug", **own})
    if architecture not in ("LlamaForCausalLM", "Qwen3ForCausalLM"):
        raise ArtifactError(
            f"{place}/config.json names the architecture {architecture}, which is unknown here. "
            "Known are GrugForCausalLM, LlamaForCausalLM and Qwen3ForCausalLM."
        )
    rope = stored.get("rope_parameters") or stored.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default" or stored.get("use_sliding_window"):
        raise ArtifactError(
            f"{place}/config.json asks for scaled RoPE or sliding windows, which Dense does not compute: its "
            "answers would be wrong. Use a model without them."
        )
    heads, head_dim = stored["num_attention_heads"], stored.get("head_dim")
    return Dense(
        vocab=stored["vocab_size"],
        hidden=stored["hidden_size"],
        layers=stored["num_hidden_layers"],
        heads=heads,
        kv_heads=stored.get("num_key_value_heads") or heads,
        mlp_width=stored["intermediate_size"],
        head_dim=None if head_dim == stored["hidden_size"] / heads else head_dim,
        tied=stored.get("tie_word_embeddings", False),
        qk_norm=architecture == "Qwen3ForCausalLM",
        biases=stored.get("attention_bias", False),
        rope_theta=stored.get("rope_theta") or rope.get("rope_theta", 10_000.0),
        norm_eps=stored.get("rms_norm_eps", 1e-6),
        max_seq=stored.get("max_position_embeddings", 2048),
    )


def _check_vocabulary(config: Model, tokenizer: dict[str, Any], ids: list[int]) -> None:
    added = [token["id"] for token in tokenizer.get("added_tokens", ())]
    size = max([*tokenizer["model"]["vocab"].values(), *added]) + 1
    if size > config.vocab:
        raise ConfigError(
            f"the tokenizer makes ids up to {size - 1}, the model has {config.vocab} rows: some text would "
            "have no embedding. Export with the tokenizer that the model was trained on."
        )
    if ids[-1] >= config.vocab or ids[0] < 0:
        raise ConfigError(
            f"ending tokens {ids} are not all below the vocabulary of {config.vocab}: the model could never "
            "end an answer. Pass stop_ids of this tokenizer."
        )


def _tokenizer_eos(files: dict[str, bytes]) -> int:
    """The id of the token that `tokenizer_config.json` calls the end."""
    named = json.loads(files["tokenizer_config.json"]).get("eos_token")
    token = named.get("content") if isinstance(named, dict) else named
    parsed = json.loads(files["tokenizer.json"])
    ids = parsed["model"]["vocab"] | {
        added["content"]: added["id"] for added in parsed.get("added_tokens", ())
    }
    if token not in ids:
        raise ConfigError(
            f"tokenizer_config.json ends texts with {token!r}, which tokenizer.json does not hold: "
            "generation would never stop. Name an eos_token that is in the vocabulary."
        )
    return ids[token]


def _as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    return () if value is None else tuple(value) if isinstance(value, list) else (value,)


def _pretty(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def _tree_hash(hashes: dict[str, str]) -> str:
    return hashlib.sha256(canonical(encode(hashes)).encode()).hexdigest()
