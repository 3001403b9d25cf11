"""Encoding documents: exactly the ids of `tokenizers`, no special tokens, cut or whole, on any threads."""

import resource
import time
from collections.abc import Callable

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings, strategies as st
from tokenizers import AddedToken

from lmlab.tokens.encode import Encoder, encode_documents, encoder_of, library_encoder, safe_pieces
from lmlab.tokens.fast import FastEncoder
from lmlab.tokens.kernels import SHORT_WORD
from lmlab.tokens.tokenizer import END_OF_TEXT

# What token borders depend on: all kinds of white space, quotes, digits, marks, scripts, the special token.
BLANKS = [" ", "  ", "\n", "\r\n", "\r", "\t", "\x1c", "\x85", "\u00a0", "\u2028", "\u3000", "\u200b", "\0"]
QUOTES = ["I'll", "'S", "'re", "'vE", "'ſ", "'ſt", "''", "'l", "'K"]
LETTERS = ["a", "the", "É", "e\u0301", "\u0301", "नमस्ते", "漢字", "ßﬆ", "ſ"]
OTHERS = [
    "7",
    "12345",
    "½",
    "Ⅷ",
    "٣",
    "...",
    "/",
    "_",
    "=====",
    "{}",
    "🙂",
    "\U000e0101",
    "\U0010ffff",
    END_OF_TEXT,
]
PIECES = st.sampled_from([*BLANKS, *QUOTES, *LETTERS, *OTHERS])
ANY_TEXT = st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=60).map("".join))


@pytest.fixture(scope="module")
def fast(tokenizer: tokenizers.Tokenizer) -> Encoder:
    assert FastEncoder.fits(tokenizer)
    return FastEncoder(tokenizer)


@given(texts=st.lists(ANY_TEXT, min_size=1, max_size=4))
@settings(deadline=None, max_examples=400)
def test_the_fast_encoder_gives_the_ids_of_the_library(tokenizer, fast: Encoder, texts: list[str]) -> None:
    found = fast([text.encode() for text in texts])
    expected = tokenizer.encode_batch_fast(texts)
    assert [ids.tolist() for ids in found] == [encoding.ids for encoding in expected]


def test_every_character_is_read_as_the_library_reads_it(tokenizer, fast: Encoder) -> None:
    points = [point for point in range(0x30000) if not 0xD800 <= point < 0xE000]
    text = "".join(f"a{chr(point)}b {chr(point)}1{chr(point)} \n" for point in points[::7])
    assert fast([text.encode()])[0].tolist() == tokenizer.encode(text).ids


def test_real_text_has_the_ids_of_the_library(tokenizer, fast: Encoder, texts: list[str]) -> None:
    for text, ids in zip(texts, fast([text.encode() for text in texts]), strict=True):
        assert ids.tolist() == tokenizer.encode(text).ids


@given(word=st.text("abcinoérst", min_size=SHORT_WORD, max_size=4 * SHORT_WORD), repeat=st.integers(1, 20))
@settings(deadline=None, max_examples=30)
def test_long_words_are_merged_as_the_library_merges_them(
    tokenizer, fast: Encoder, word: str, repeat: int
) -> None:
    texts = ["before", "x " + word * repeat + " y", "after"]
    found = fast([text.encode() for text in texts])
    assert [ids.tolist() for ids in found] == [tokenizer.encode(text).ids for text in texts]


def test_a_word_of_a_million_letters_takes_a_second(tokenizer, fast: Encoder) -> None:
    started = time.process_time()
    (ids,) = fast([b"ACGTTGCA" * 125_000])
    assert time.process_time() - started < 5  # quadratic merging would take a day
    assert tokenizer.decode(ids) == "ACGTTGCA" * 125_000


def test_the_fast_encoder_stays_right_when_it_has_met_more_words_than_it_keeps(
    tokenizer, fast: Encoder
) -> None:
    text = " ".join(f"{chr(97 + i % 26)}{i * 7919:x}q" for i in range(70_000))
    assert fast([text.encode()])[0].tolist() == tokenizer.encode(text).ids


def changed(
    change: Callable[[tokenizers.Tokenizer], object], tokenizer: tokenizers.Tokenizer
) -> tokenizers.Tokenizer:
    copy = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    change(copy)
    return copy


@pytest.mark.parametrize(
    "change",
    [
        lambda t: setattr(t, "normalizer", tokenizers.normalizers.NFC()),
        lambda t: setattr(t, "pre_tokenizer", tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)),
        lambda t: t.add_tokens([AddedToken("hello", special=False)]),
        lambda t: setattr(t.model, "ignore_merges", True),
    ],
    ids=["normalizer", "pattern", "added token", "other merging"],
)
def test_any_other_tokenizer_is_left_to_the_library(tokenizer, change) -> None:
    other = changed(change, tokenizer)
    assert not FastEncoder.fits(other)
    text = "hello Ⅷ ｈｅｌｌｏ it's"
    assert encoder_of(other)([text.encode()])[0].tolist() == other.encode(text).ids


@given(text=ANY_TEXT)
@settings(deadline=None)
def test_a_document_can_not_contain_the_end_of_document_id(tokenizer, fast: Encoder, text: str) -> None:
    data = (text + END_OF_TEXT + text).encode()
    for encode in (fast, library_encoder(tokenizer)):
        assert tokenizer.token_to_id(END_OF_TEXT) not in encode([data])[0]


@given(text=ANY_TEXT, piece_chars=st.integers(1, 12))
@settings(deadline=None, max_examples=300)
def test_pieces_of_a_text_have_the_ids_of_the_whole(tokenizer, text: str, piece_chars: int) -> None:
    pieces = [piece.decode() for piece in safe_pieces(text.encode(), piece_chars)]
    assert "".join(pieces) == text
    ids = [number for piece in pieces for number in tokenizer.encode(piece).ids]
    assert ids == tokenizer.encode(text).ids


@pytest.mark.parametrize("kind", ["fast", "library"])
def test_a_text_of_many_megabytes_has_the_ids_of_the_whole_in_bounded_memory(
    tokenizer, fast, texts, kind
) -> None:
    encode = fast if kind == "fast" else library_encoder(tokenizer)
    text = "\n\n".join(texts) * 9
    assert len(text) > 4_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (ids,) = encode_documents(encode, [text.encode()])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 150_000  # KiB; the library needs 570,000 for the whole text at once
    assert np.array_equal(ids, fast([text.encode()])[0])


@pytest.mark.parametrize("workers", [1, 3])
def test_documents_come_back_in_order_whatever_the_number_of_threads(tokenizer, fast, texts, workers) -> None:
    given = ["", *texts[:30], "", *(text[:50] for text in texts), "\n\n".join(texts[:20]), ""] * 3
    found = encode_documents(fast, (text.encode() for text in given), workers)
    for text, ids in zip(given, found, strict=True):
        assert tokenizer.decode(ids) == text


def test_no_documents_give_no_ids(fast: Encoder) -> None:
    assert list(encode_documents(fast, [])) == []
