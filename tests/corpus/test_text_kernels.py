"""The compiled loops against plain Python over the same definition, on ASCII and on everything else."""

import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lmlab.corpus import kernels
from lmlab.corpus.characters import classes

MASK = (1 << 64) - 1
PRIME, MIX = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
FACTORS = np.random.default_rng(1).integers(0, 1 << 32, 22, dtype=np.uint32) | np.uint32(1)
ADDENDS = np.random.default_rng(2).integers(0, 1 << 32, 22, dtype=np.uint32)

TEXTS = st.lists(
    st.text(st.characters(codec="utf-8"), max_size=40)
    | st.text("abc AB.\n", max_size=60)
    | st.text("aé漢字ไท 😀İß\n\t", max_size=30),
    min_size=1,
    max_size=4,
)


def packed(texts):
    encoded = [text.encode() for text in texts]
    return (
        np.frombuffer(b"".join(encoded) or b"", np.uint8),
        np.cumsum([0, *(len(item) for item in encoded)]).astype(np.int64),
    )


def mixed(value):
    for _ in range(2):
        value = ((value ^ (value >> 32)) * MIX) & MASK
    return value ^ (value >> 32)


def is_alone(character):
    ranges = ((0xE00, 0x10A0), (0x1780, 0x1800), (0x3040, 0x3100), (0x3400, 0xA4D0), (0xF900, 0xFB00))
    return ord(character) >= 0x20000 or any(a <= ord(character) < b for a, b in ranges)


def cleaned(text):
    """Letters in lower case, " " for a gap, "\\n" for one with a blank line."""
    letters, gap = [], None
    for character in text:
        if character.isspace() and ord(character) < 0x20000:
            gap = (gap or "") + character
        elif ord(character) >= 0x20000 or unicodedata.category(character)[0] in "LMN":
            if gap is not None and letters:
                letters.append("\n" if gap.count("\n") > 1 else " ")
            gap = None
            lower = character.lower()
            letters.append(lower if len(lower) == 1 and ord(character) < 0x20000 else character)
    return letters


def shingles(text, n=5):
    codes = [1 if c in " \n" else ord(c) | (is_alone(c) << 31) for c in cleaned(text)]
    for start in range(len(codes) - n + 1):
        rolling = 0
        for value in codes[start : start + n]:
            rolling = (rolling * PRIME + value) & MASK
        yield (mixed(rolling) >> 32) | 1


def bands_by_python(text, bands=2):
    found = set(shingles(text))
    if not found:
        return [0] * bands
    minima = [
        min((int(f) * s + int(a)) & 0xFFFFFFFF for s in found) for f, a in zip(FACTORS, ADDENDS, strict=True)
    ]
    rows = len(minima) // bands
    keys = []
    for band in range(bands):
        key = band + 1
        for value in minima[band * rows : (band + 1) * rows]:
            key = mixed((key * PRIME + value) & MASK)
        keys.append(key)
    return keys


def words_of(text):
    """(word hash, paragraph) of every word."""
    found, word, paragraph = [], 0, 0
    is_open = False
    for letter in [*cleaned(text), " "]:
        if letter in " \n" or is_alone(letter):
            if is_open:
                found.append((mixed(word), paragraph))
            word, is_open = 0, False
        if letter not in " \n" and is_alone(letter):
            found.append((mixed(((ord(letter) | 1 << 31) * PRIME) & MASK), paragraph))
        elif letter not in " \n":
            word, is_open = ((word ^ ord(letter)) * PRIME) & MASK, True
        paragraph += letter == "\n"
    return found


def grams_by_python(text, n, shortest, by_paragraph):
    words = words_of(text)
    if shortest <= len(words) < n:
        if by_paragraph and len({paragraph for _, paragraph in words}) > 1:
            return []
        rolling = 0
        for word, _ in words:
            rolling = (rolling * PRIME + word) & MASK
        return [(mixed(rolling), words[-1][1])] if words else []
    found = []
    for start in range(len(words) - n + 1):
        run = words[start : start + n]
        if by_paragraph and run[0][1] != run[-1][1]:
            continue
        rolling = 0
        for word, _ in run:
            rolling = (rolling * PRIME + word) & MASK
        found.append((mixed(rolling), run[-1][1]))
    return found


def minhash(texts, cap=1000):
    bands = np.zeros((len(texts), 2), np.uint64)
    counts = kernels.minhash_bands(*packed(texts), classes(), FACTORS, ADDENDS, 5, cap, bands)
    return bands.tolist(), counts.tolist()


@settings(max_examples=150, deadline=None)
@given(texts=TEXTS)
def test_minhash_equals_plain_python_on_any_text(texts):
    bands, counts = minhash(texts)
    assert bands == [bands_by_python(text) for text in texts]
    assert counts == [len(list(shingles(text))) for text in texts]


@settings(max_examples=150, deadline=None)
@given(texts=TEXTS, n=st.integers(1, 4), shortest=st.integers(1, 3), by_paragraph=st.booleans())
def test_word_runs_equal_plain_python_on_any_text(texts, n, shortest, by_paragraph):
    data, offsets = packed(texts)
    grams = np.empty(len(data) // 2 + len(texts), np.uint64)
    paragraphs = np.empty(len(grams), np.int32)
    ends = kernels.word_grams(data, offsets, classes(), n, shortest, by_paragraph, grams, paragraphs)
    wanted = [grams_by_python(text, n, shortest, by_paragraph) for text in texts]
    got = list(zip(grams[: ends[-1]].tolist(), paragraphs[: ends[-1]].tolist(), strict=True))
    assert [got[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)] == wanted


def test_cleaning_ignores_case_punctuation_and_spacing():
    bands, _ = minhash(["Hello,  World again!", "hello world\nagain", "hello word again"])
    assert bands[0] == bands[1] != bands[2]


def test_texts_without_a_shingle_have_no_bands():
    bands, counts = minhash(["", "a", "four", "?!…", "fives"])
    assert counts == [0, 0, 0, 0, 1]
    assert bands[:4] == [[0, 0]] * 4


def test_characters_beyond_the_cap_are_not_looked_at():
    text = "éa bc" * 200
    bands, _ = minhash([text, text + "and another end", text[:1000]], cap=1000)
    assert bands[0] == bands[1] == bands[2]


def test_repeats_farther_apart_than_the_memory_of_recent_shingles_change_nothing():
    text = "".join(np.random.default_rng(0).choice(list("abcdefghijklmnopqrstuvwxyz"), 60_000))
    twice, thrice = minhash([text * 2], cap=10**6), minhash([text * 3], cap=10**6)
    assert twice[0] == thrice[0]
    assert thrice[1][0] == 3 * 60_000 - 4


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 50)), st.sets(st.integers(0, 50)))
def test_common_counts_the_intersection(left, right):
    arrays = (np.array(sorted(side), np.uint64) for side in (left, right))
    assert kernels.common(*arrays) == len(left & right)


@pytest.mark.slow
def test_record_of_64_million_characters_is_capped_and_finishes():
    bands, counts = minhash(["word " * 12_800_000], cap=500_000)
    assert counts[0] <= 500_000
    assert bands[0] != [0, 0]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.sampled_from("ab \n\u3000\x85é\u2003か"), max_size=40), min_size=1, max_size=4))
def test_no_long_gap_is_missed_and_only_texts_with_the_bytes_of_one_are_looked_at(texts):
    found = np.zeros(len(texts), bool)
    kernels.long_gaps(*packed(texts), 7, found)
    for text, suspected in zip(texts, found, strict=True):
        assert suspected or not re.search(r"\s{8,}", text)
        assert suspected == bool(re.search(rb"[\x09-\x0d\x1c-\x20\x80-\xaf\xc2\xe1-\xe3]{8,}", text.encode()))


def test_any_whitespace_character_can_make_a_long_gap():
    gaps = [character * 129 for character in map(chr, range(0x110000)) if re.match(r"\s", character)]
    found = np.zeros(len(gaps), bool)
    kernels.long_gaps(*packed(gaps), 128, found)
    assert found.all()
    assert len(gaps) > 20
