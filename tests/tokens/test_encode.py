"""Encoding documents: exactly the ids of `tokenizers`, no special tokens, cut or whole."""

import json
import re
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings, strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from lmlab.core.errors import InputError
from lmlab.tokens import pieces
from lmlab.tokens.compiled import CompiledEncoder
from lmlab.tokens.encode import encode_documents, encode_pieces
from lmlab.tokens.fast import Encoder, encoder_of, first_difference, hard_texts, library_encoder
from lmlab.tokens.patterns import PATTERNS, Pattern, pattern_of
from lmlab.tokens.pieces import Cutter
from lmlab.tokens.tokenizer import END_OF_TEXT, byte_level_bpe

# What token borders depend on: all kinds of white space, quotes, digits, marks, scripts, the special token.
BLANKS = [" ", "\n", "\r\n", "\r", "\t", "\x1c", "\x85", "\u00a0", "\u2028", "\u3000", "\u200b", "\0"]
QUOTES = ["'", "I'll", "'S", "'re", "'vE", "'ſ", "'ſt", "'l", "'K"]
LETTERS = [
    "a",
    "A",
    "Ab",
    "É",
    "e\u0301",
    "\u0301",
    "नमस्ते",
    "字",
    "漢字",
    "각",
    "\u1100\u1161\u11a8",
    "ſ",
    "ǅ",
    "ʰ",
]
OTHERS = [
    "7",
    "0",
    "½",
    "²",
    "Ⅷ",
    "٣",
    ".",
    "/",
    "=",
    "(",
    "🙂",
    "\U000e0101",
    "\U0010ffff",
    END_OF_TEXT,
    ", ",
]
CHARACTERS = st.sampled_from([*BLANKS, *QUOTES, *LETTERS, *OTHERS])
# Runs, so that no safe point is near: the cut falls into a word.
RUNS = st.tuples(CHARACTERS, st.sampled_from([1, 1, 2, 3, 9, 40])).map(lambda run: run[0] * run[1])
ANY_TEXT = st.one_of(st.text(max_size=200), st.lists(RUNS, max_size=10).map("".join))


def trained(pattern: str, texts: list[str], *, nfc: bool = False) -> tokenizers.Tokenizer:
    """A small tokenizer of a family, which has merges for runs of the same character too."""
    tokenizer = byte_level_bpe(pattern)
    tokenizer.normalizer = normalizers.NFC() if nfc else None
    runs = (
        "aaaaaaaa AAAA   \n\n\n\t\t    ((((( ---- //// ==== 字字字漢漢 abab '''' 'll's 00000 123123 字字" * 20
    )
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END_OF_TEXT],
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts[:30], runs], trainer)
    tokenizer.encode_special_tokens = True
    return tokenizer


@pytest.fixture(scope="module", params=[*PATTERNS, "qwen2+NFC", "o200k+NFC"])
def family(request: pytest.FixtureRequest, texts: list[str]) -> tokenizers.Tokenizer:
    name, _, nfc = request.param.partition("+")
    tokenizer = trained(name, texts, nfc=bool(nfc))
    assert pattern_of(tokenizer) == name
    return tokenizer


@given(text=ANY_TEXT, piece_chars=st.integers(1, 8))
@settings(deadline=None, max_examples=250)
def test_pieces_of_a_text_have_the_ids_of_the_whole(family, text: str, piece_chars: int) -> None:
    found = [piece.decode() for piece in Cutter(family).pieces(text.encode(), piece_chars)]
    assert "".join(found) == text
    assert [number for piece in found for number in family.encode(piece).ids] == family.encode(text).ids


@pytest.mark.parametrize("run", ["a", "A", "字", "0", " ", "\n", "\t", "(", "=", "\0", "ACGT"])
def test_a_giant_run_is_cut_and_joins(family, run: str) -> None:
    text = f"start {run * 1_500} end"
    found = [piece.decode() for piece in Cutter(family).pieces(text.encode(), 50)]
    assert max(map(len, found)) < 250
    assert [number for piece in found for number in family.encode(piece).ids] == family.encode(text).ids


def varied(tokenizer: tokenizers.Tokenizer, variety: str) -> tokenizers.Tokenizer:
    """The tokenizer in a way that published ones are."""
    parts = json.loads(tokenizer.to_str())
    model = parts["model"]
    match variety:
        case "whole words":  # tiktoken's: a word of the vocabulary needs no merges
            model["ignore_merges"] = True
            model["merges"] = model["merges"][::2]
        case "lacks bytes":  # SmolLM2's
            for letter in "ĠAe":
                model["merges"] = [pair for pair in model["merges"] if letter not in "".join(pair)]
                model["vocab"] = {word: n for word, n in model["vocab"].items() if letter not in word}
        case "finds tokens":  # Qwen's <tool_call>; the special one begins earlier and hides a part of it
            plain = {"special": False, "single_word": False, "lstrip": False, "rstrip": False}
            added = ["'ll", "<|", "text|>a", "a字", "\n\n"]
            new = [
                {"id": 900 + i, "content": text, "normalized": False} | plain for i, text in enumerate(added)
            ]
            parts["added_tokens"] += new
    other = tokenizers.Tokenizer.from_str(json.dumps(parts))
    other.encode_special_tokens = True
    return other


@pytest.fixture(scope="module", params=["", "whole words", "lacks bytes", "finds tokens"])
def variety(request: pytest.FixtureRequest, family) -> tuple[tokenizers.Tokenizer, CompiledEncoder]:
    tokenizer = varied(family, request.param)
    return tokenizer, CompiledEncoder(tokenizer)


@given(text=ANY_TEXT)
@settings(deadline=None, max_examples=150)
def test_the_compiled_encoder_gives_the_ids_of_the_library(variety, text: str) -> None:
    tokenizer, encode = variety
    assert encode([text.encode()])[0].tolist() == tokenizer.encode(text).ids


def test_every_family_is_encoded_fast_and_alike(family) -> None:
    assert first_difference(family.to_str()) == ""


def test_words_come_out_alike_when_there_are_more_than_are_kept(tokenizer) -> None:
    letters = "abcdefghij"
    text = "".join(f" {a}{b}{c}{d}{end}" for a, b, c, d in product(letters, repeat=4) for end in "éyzABZÜ")
    encode = encoder_of(tokenizer)
    assert encode.name == "compiled"
    theirs = library_encoder(tokenizer)([text.encode()])[0]
    for _ in range(2):
        assert np.array_equal(encode([text.encode()])[0], theirs)


def test_threads_share_an_encoder(tokenizer, texts) -> None:
    encode = encoder_of(tokenizer)
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda text: encode([text.encode()])[0].tolist(), texts[:60])
        assert list(found) == [tokenizer.encode(text).ids for text in texts[:60]]


@given(text=ANY_TEXT)
@settings(deadline=None, max_examples=50)
def test_a_document_can_not_contain_the_end_of_document_id(tokenizer, text: str) -> None:
    data = (text + END_OF_TEXT + text).encode()
    for encode in (CompiledEncoder(tokenizer), library_encoder(tokenizer)):
        assert tokenizer.token_to_id(END_OF_TEXT) not in encode([data])[0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: t.add_tokens([AddedToken("hello", single_word=True)]), "added tokens are found"),
        (lambda t: setattr(t, "normalizer", normalizers.Lowercase()), "its normalizer is Lowercase"),
        (lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.ByteLevel(True)), "its pre-tokenizer is none"),
        (lambda t: setattr(t.model, "dropout", 0.1), "it has dropout"),
        (lambda t: t.enable_truncation(20), "it has truncation"),
        (lambda t: setattr(t, "model", models.BPE({"a": 0, "?": 1}, [], unk_token="?")), "no byte-level BPE"),
    ],
)
def test_what_the_compiled_encoder_does_not_know_is_left_to_the_library(
    tokenizer, tmp_path, monkeypatch, change, why: str
) -> None:
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path))
    other = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    change(other)
    encoder = encoder_of(other)
    assert encoder.name == "tokenizers"
    assert why in encoder.why
    (kept,) = (tmp_path / "encoders").iterdir()
    kept.write_text('{"why": "as it stands in the cache"}')
    assert encoder_of(other).why == "as it stands in the cache"


def test_a_pattern_that_the_compiled_encoder_reads_otherwise_is_found_by_the_trial(
    tokenizer, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path))
    monkeypatch.setitem(PATTERNS, "words", Pattern(r"\s+|[^\s]+", digits=None))
    other = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    other.pre_tokenizer = PATTERNS["words"].pre_tokenizer()
    encoder = encoder_of(other)
    assert encoder.name == "tokenizers"
    assert "has other ids" in encoder.why
    assert encoder([b"it's 12345"])[0].tolist() == other.encode("it's 12345").ids


def test_a_giant_word_takes_no_more_than_n_log_n(tokenizer) -> None:
    (ids,) = encode_documents(encoder_of(tokenizer), [b" " * 1_000_000])
    assert tokenizer.decode(ids) == " " * 1_000_000
    (whole,) = encoder_of(tokenizer)([b" " * 1_000_000])  # what can't be cut
    assert np.array_equal(whole, ids)


def test_a_tokenizer_of_unknown_words_is_not_cut_and_a_giant_document_is_refused(tokenizer) -> None:
    other = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    other.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    encoder = Encoder("tokenizers", "", library_encoder(other), Cutter(other))
    assert [len(piece) for piece in encoder.cutter.pieces(b"a b " * 20_000)] == [80_000]
    with pytest.raises(InputError, match=r"a document has 20,000,000 bytes.*is not known"):
        list(encode_documents(encoder, [b"a b " * 5_000_000]))


def test_an_added_token_with_a_border_inside_is_never_cut(tokenizer) -> None:
    other = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    other.add_tokens([AddedToken("one, two", normalized=False)])
    assert Cutter(other).pattern is None
    assert Cutter(tokenizer).pattern is PATTERNS["lmlab"]


def test_documents_come_back_in_order(tokenizer, texts) -> None:
    given = ["", *texts[:30], "", *(text[:50] for text in texts), "\n\n".join(texts[:20]), ""] * 3
    found = encode_documents(encoder_of(tokenizer), (text.encode() for text in given))
    for text, ids in zip(given, found, strict=True):
        assert tokenizer.decode(ids) == text


def test_no_documents_give_no_ids(tokenizer) -> None:
    assert list(encode_documents(encoder_of(tokenizer), [])) == []


def test_hard_texts_have_every_token_and_every_special_as_text(tokenizer) -> None:
    texts = list(hard_texts(tokenizer))
    used = {number for text in texts for number in tokenizer.encode(text).ids}
    assert len(used) > 0.9 * tokenizer.get_vocab_size()
    assert any(END_OF_TEXT in text for text in texts)


GIANTS = {
    "prose": "It was the best of times, it was the worst of times. " * 20,
    "one letter": "a" * 1_000,
    "DNA": "ACGTTGCA" * 125,
    "Chinese without stops": "天地玄黃宇宙洪荒日月盈昃辰宿列張" * 60,
    "blanks": " " * 1_000,
    "line breaks": "\n" * 1_000,
    "digits": "0" * 1_000,
}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", GIANTS)
def test_sixty_four_million_characters_take_less_than_a_gigabyte(tokenizer, name: str) -> None:
    # Finding where to cut Chinese without stops takes 2 CPU-s a million, so there it is eight million.
    size = 8_000_000 if name.startswith("Chinese") else 64_000_000
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # its peak must not be that of other tests
        tokens, is_same, peak_kib = pool.submit(encode_giant, tokenizer.to_str(), GIANTS[name], size).result()
    assert tokens > 100_000
    assert is_same
    assert peak_kib < 1_000_000


def encode_giant(saved: str, text: str, size: int) -> tuple[int, bool, int]:
    """Tokens, whether the first four million bytes come back, and the peak of this process in KiB."""
    tokenizer = Tokenizer.from_str(saved)
    tokenizer.encode_special_tokens = True
    data = (text * (size // len(text))).encode()
    tokens, checked = 0, b""
    for ids, is_last in encode_pieces(encoder_of(tokenizer), [data]):
        tokens += len(ids)
        if len(checked) < 4_000_000 and not is_last:
            checked += tokenizer.decode(ids).encode()
    return tokens, data.startswith(checked), peak_kib_of_this_program()


def peak_kib_of_this_program() -> int:
    """The peak since exec; `ru_maxrss` of a child starts at what its parent held when it was made."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])


@pytest.mark.slow
def test_four_million_characters_have_the_ids_of_the_whole(tokenizer, texts) -> None:
    text = "\n\n".join(texts) * 4 + "a" * 100_000 + "天地玄黃" * 100_000
    (ids,) = encode_documents(encoder_of(tokenizer), [text.encode()])
    assert np.array_equal(ids, tokenizer.encode(text).ids)
    assert len(text) > pieces.PIECE_CHARS
