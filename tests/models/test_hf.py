"""Folders for Hugging Face: they come back unchanged, damage is found, and transformers computes the same."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from small_models import noisy, run, small_dense, small_grug

from lmlab.core.errors import ArtifactError, ConfigError
from lmlab.models.decoder import init_params, logits
from lmlab.models.hf import eos_ids, export_folder, load_folder, verify_folder
from lmlab.models.loss import Batch, token_losses

KEY = jax.random.key(9)


@pytest.fixture
def tokenizer(tmp_path):
    """The two files that matter, as `tokenizers` writes them."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    vocab = {"a": 0, "b": 1, "<|endoftext|>": 2, "<|end|>": 3}
    special = [{"id": 2, "content": "<|endoftext|>", "special": True}]
    (folder / "tokenizer.json").write_text(
        json.dumps({"model": {"type": "BPE", "vocab": vocab, "merges": []}, "added_tokens": special})
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return folder


def exported(model, tokenizer, out, **how):
    out.mkdir(exist_ok=True)
    params = noisy(model, scale=0.05)
    return params, export_folder(model, params, tokenizer, out, **how)


@pytest.mark.parametrize(
    "model",
    [
        small_grug(),
        small_grug(norm_gate_rank=None, head_gate=False, shared_width=None, window=None, head_dim=12),
        small_dense(),
        small_dense(tied=True, biases=True),
        small_dense(qk_norm=True, head_dim=12),
    ],
)
def test_a_folder_gives_back_config_and_every_parameter(model, tokenizer, tmp_path):
    params, _ = exported(model, tokenizer, tmp_path / "out")
    verify_folder(tmp_path / "out")
    loaded = load_folder(tmp_path / "out")
    assert loaded.config == model
    assert loaded.eos_ids == (2,)
    assert jax.tree.structure(loaded.params) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, params)


def test_two_exports_have_one_tree_hash_and_other_weights_another(model, tokenizer, tmp_path):
    params, first = exported(model, tokenizer, tmp_path / "one")
    _, second = exported(model, tokenizer, tmp_path / "two")
    assert first == second
    params["embed"]["weight"] = params["embed"]["weight"].at[0, 0].add(1)
    assert export_folder(model, params, tokenizer, tmp_path / "two").tree_sha256 != first.tree_sha256


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_one_flipped_byte_is_found_and_named(name, tokenizer, tmp_path):
    exported(small_dense(), tokenizer, tmp_path / "out")
    data = bytearray((tmp_path / "out" / name).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "out" / name).write_bytes(data)
    with pytest.raises(ArtifactError, match=name):
        verify_folder(tmp_path / "out")


def test_a_missing_file_and_a_missing_manifest_are_found(tokenizer, tmp_path):
    exported(small_dense(), tokenizer, tmp_path / "out")
    (tmp_path / "out/generation_config.json").unlink()
    with pytest.raises(ArtifactError, match=r"generation_config\.json is missing"):
        verify_folder(tmp_path / "out")
    (tmp_path / "out/MANIFEST.json").unlink()
    with pytest.raises(ArtifactError, match="no finished export"):
        verify_folder(tmp_path / "out")


def test_generation_ends_with_the_union_of_all_ending_tokens(tokenizer, tmp_path):
    exported(small_dense(), tokenizer, tmp_path / "out", stop_ids=(3,))
    assert json.loads((tmp_path / "out/generation_config.json").read_text())["eos_token_id"] == [2, 3]
    assert eos_ids(tmp_path / "out") == (2, 3)


def test_a_generation_config_without_the_tokenizers_end_is_refused(tokenizer, tmp_path):
    exported(small_dense(), tokenizer, tmp_path / "out", stop_ids=(3,))
    (tmp_path / "out/generation_config.json").write_text(json.dumps({"eos_token_id": 3}))
    with pytest.raises(ArtifactError, match="would not stop"):
        load_folder(tmp_path / "out")


def test_ending_tokens_and_tokenizers_that_do_not_fit_are_refused_before_writing(tokenizer, tmp_path):
    with pytest.raises(ConfigError, match=r"ending tokens \[2, 97\]"):
        exported(small_dense(), tokenizer, tmp_path / "out", stop_ids=(97,))
    with pytest.raises(ConfigError, match="ids up to 3, the model has 3 rows"):
        exported(small_dense(vocab=3), tokenizer, tmp_path / "out")
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    with pytest.raises(ConfigError, match="</s>"):
        exported(small_dense(), tokenizer, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_params_of_another_model_are_refused(tokenizer, tmp_path):
    with pytest.raises(ConfigError, match="embed/weight"):
        export_folder(small_dense(), init_params(small_dense(vocab=98), KEY), tokenizer, tmp_path)


def test_missing_extra_and_misshapen_tensors_are_refused(tokenizer, tmp_path):
    exported(small_dense(), tokenizer, tmp_path / "out")
    file = tmp_path / "out/model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    norm = "model.norm.weight"
    for changed, named in (
        ({k: v for k, v in tensors.items() if k != norm}, "no tensor model.norm.weight"),
        (tensors | {"model.extra": tensors[norm]}, "model.extra"),
        (tensors | {norm: tensors[norm][:5]}, r"\(5,\), but the config asks for \(32,\)"),
    ):
        safetensors.numpy.save_file(changed, file)
        with pytest.raises(ArtifactError, match=named):
            load_folder(tmp_path / "out")


def test_an_architecture_that_is_unknown_here_is_refused(tokenizer, tmp_path):
    exported(small_dense(), tokenizer, tmp_path / "out")
    (tmp_path / "out/config.json").write_text(json.dumps({"architectures": ["MambaForCausalLM"]}))
    with pytest.raises(ArtifactError, match="MambaForCausalLM"):
        load_folder(tmp_path / "out")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied": True, "biases": True, "rope_theta": 500.0},
        {"qk_norm": True, "head_dim": 16, "norm_eps": 1e-6, "kv_heads": 1},
    ],
    ids=["llama", "llama-tied-biases", "qwen3"],
)
def test_transformers_computes_the_same_logits_and_loss(changes, tokenizer, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is missing: `make torch` installs it")
    transformers = pytest.importorskip("transformers", reason="transformers is missing: `make torch`")
    model = small_dense(**changes)
    params, _ = exported(model, tokenizer, tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert type(theirs).__name__ == ("Qwen3ForCausalLM" if model.qk_norm else "LlamaForCausalLM")
    tokens = jax.random.randint(KEY, (2, 40), 0, model.vocab)
    ours = logits(params, model, run(params, model, tokens).hidden)
    with torch.no_grad():
        ids = torch.tensor(np.array(tokens, np.int64))
        out = theirs(ids, labels=ids)
    np.testing.assert_allclose(ours, out.logits.numpy(), atol=1e-4)
    batch = Batch(tokens, jnp.roll(tokens, -1, 1), jnp.ones((2, 40)).at[:, -1].set(0), None)
    nats, _ = token_losses(params, model, batch, dtype=jnp.float32)
    assert float(nats.sum() / batch.weights.sum()) == pytest.approx(float(out.loss), abs=1e-5)
