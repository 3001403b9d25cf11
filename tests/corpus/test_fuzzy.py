"""Near duplicates: how many planted pairs are found, and what is said of those that are confirmed."""

import numpy as np
import pyarrow as pa
import pytest
from sample_archives import prose

from lmlab.core.errors import ConfigError, InputError
from lmlab.corpus import Fuzzy, near_duplicates
from lmlab.corpus.fuzzy import band_keys, mark_near_duplicates, sign
from lmlab.corpus.schema import document_id
from lmlab.dataflow.runner import open_runner
from lmlab.storage import Path

LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz0123456789"))


def planted(jaccard, pairs, seed):
    """Pairs of texts of blocks, each sharing as many of its blocks as that Jaccard similarity needs."""
    draw = np.random.default_rng(seed)
    blocks, size = 60, 12
    shared = round(blocks * 2 * jaccard / (1 + jaccard))
    texts, truth = [], []
    for _ in range(pairs):
        pool = ["".join(draw.choice(LETTERS, size)) for _ in range(2 * blocks - shared)]
        # A gap of punctuation would be cleaned away, so blocks meet; seams are in the measured Jaccard.
        left, right = pool[:blocks], pool[:shared] + pool[blocks:]
        texts += ["".join(left), "".join(right)]
        sets = [{text[i : i + 5] for i in range(len(text) - 4)} for text in texts[-2:]]
        truth.append(len(sets[0] & sets[1]) / len(sets[0] | sets[1]))
    return texts, np.array(truth)


@pytest.mark.parametrize("jaccard", [0.5, 0.65, 0.72, 0.78, 0.85, 0.95])
def test_planted_pairs_are_found_as_often_as_theory_says(jaccard):
    texts, truth = planted(jaccard, 300, int(jaccard * 100))
    table = pa.table({"text": pa.array(texts, pa.large_string())})
    keys = band_keys(table, Fuzzy())
    found = (keys[0::2] == keys[1::2]).any(axis=1).mean()
    wanted = 1 - (1 - truth**11) ** 26
    # Three standard errors of 300 draws, and 0.01 that the spec allows.
    tolerance = 3 * float(np.sqrt((wanted * (1 - wanted)).sum())) / 300 + 0.01
    assert abs(found - wanted.mean()) <= tolerance


@pytest.mark.slow
@pytest.mark.parametrize("jaccard", [0.5, 0.65, 0.72, 0.78, 0.85, 0.95])
def test_forty_thousand_planted_pairs_are_within_one_percent_of_theory(jaccard):
    pairs = 40_000
    draw = np.random.default_rng(int(jaccard * 1000))
    shared = round(720 * 2 * jaccard / (1 + jaccard))
    left = LETTERS[draw.integers(0, 36, (pairs, 720))]
    right = np.concatenate([left[:, :shared], LETTERS[draw.integers(0, 36, (pairs, 720 - shared))]], axis=1)
    texts = np.stack([left, right], axis=1).reshape(2 * pairs, 720)
    joined = pa.py_buffer(texts.astype("U1").astype("S1").tobytes())
    ends = pa.py_buffer(np.arange(0, 720 * (2 * pairs + 1), 720).tobytes())
    column = pa.LargeStringArray.from_buffers(2 * pairs, ends, joined)
    truth = [
        len(a & b) / len(a | b)
        for a, b in (
            (
                {text[i : i + 5] for i in range(716)}
                for text in map("".join, texts[2 * k : 2 * k + 2].tolist())
            )
            for k in range(400)
        )
    ]
    keys = band_keys(pa.table({"text": column}), Fuzzy())
    found = (keys[0::2] == keys[1::2]).any(axis=1).mean()
    wanted = np.mean([1 - (1 - s**11) ** 26 for s in truth])
    assert abs(found - wanted) <= 0.01


def test_short_empty_and_huge_documents_have_their_signature_or_none():
    long = "".join(LETTERS[np.random.default_rng(1).integers(0, 36, 500_000)])
    texts = ["", "  ", "abcd", "?!?!?!", "abcde", "漢字かな交じり文", long, long + " more" * 12_700_000]
    assert len(texts[-1]) > 64_000_000 - 500_000
    keys = band_keys(pa.table({"text": pa.array(texts, pa.large_string())}), Fuzzy())
    assert [bool(row.any()) for row in keys] == [False] * 4 + [True] * 4
    assert (keys[6] == keys[7]).all()  # what is beyond the cap is not looked at


@pytest.fixture
def marked(documents, tmp_path, rows_of):
    """The near-duplicate attributes of corpora given as {name: texts}, by text, and what was found."""

    def run(corpora, fuzzy=FUZZY, parts=2):
        made = {
            name: documents([("d", f"{name}/{i}", t) for i, t in enumerate(texts)], parts, name or "one").path
            for name, texts in corpora.items()
        }
        out, signed = Path(tmp_path / "near"), {name: Path(tmp_path / f"signed{name}") for name in corpora}
        with open_runner(1) as runner:
            for name in corpora:
                sign(made[name], signed[name], fuzzy, runner, lambda *_: None)
            found = mark_near_duplicates(made, signed, out, fuzzy, runner, print)
        text_of = {row["id"]: row["text"] for folder in made.values() for row in rows_of(folder)}
        rows = {name: {text_of[r["id"]]: r for r in rows_of(out / name if name else out)} for name in corpora}
        return rows, found

    return run


FUZZY = Fuzzy()


def test_near_copy_is_marked_with_what_it_repeats_and_how_much_is_new(marked):
    text = prose(1, 400)
    copy = text.rpartition(" ")[0].replace("\n\n", "\n\n\n\n")
    rows, found = marked({"": [text, copy, prose(2, 400), "x"]})
    row = rows[""][copy]
    assert row["duplicate_of"] == document_id(text)
    assert (row["containment"], row["novel_words"]) == (1.0, 0)
    words = text.split()
    runs = len({tuple(words[i : i + 3]) for i in range(398)})
    assert row["jaccard"] == (runs - 1) / runs
    assert row["reason"] == f"near duplicate: 1.00 of it is in {document_id(text)}"
    assert [r["duplicate_of"] for t, r in rows[""].items() if t != copy] == [None] * 3
    # The third text has the same made-up vocabulary: a candidate, and no duplicate.
    assert found == {
        "documents": 4, "unsigned": 1, "candidates": 3, "clusters": 1, "largest": 3, "duplicates": 1,
        "converged": True,
    }  # fmt: skip


def test_equal_texts_of_two_corpora_are_two_rows_and_the_later_one_repeats_the_earlier(marked):
    text = prose(1, 400)
    rows, found = marked({"a": [text, prose(2, 400)], "b": [prose(3, 400), text]})
    assert found["documents"] == 4
    assert rows["a"][text]["duplicate_of"] is None
    assert rows["b"][text]["duplicate_of"] == f"a:{document_id(text)}"


@pytest.mark.slow
def test_documents_of_64_mib_are_signed_by_their_beginning_and_compared_whole(marked):
    words = np.array(
        ["".join(word) for word in LETTERS[np.random.default_rng(2).integers(0, 26, (50_000, 6))]]
    )
    start, *ends = (
        " ".join(words[np.random.default_rng(seed).integers(0, 50_000, count)].tolist())
        for seed, count in ((3, 80_000), (4, 9_600_000), (5, 9_600_000))
    )
    texts = [f"{start} {ends[0]}", f"{start} {ends[1]}", f"{start} {ends[0]} and more"]
    assert min(map(len, texts)) > 64 << 20
    rows, found = marked({"": texts}, parts=1)
    # All three begin alike and so are candidates; the second goes on in its own words.
    assert found["candidates"] == 3
    assert [rows[""][text]["duplicate_of"] for text in texts] == [document_id(texts[2]), None, None]


def test_signatures_of_other_settings_or_documents_are_refused(documents, tmp_path):
    made = documents([("d", "a", prose(1, 50))]).path
    more = documents([("d", str(i), prose(i, 50)) for i in range(5)], name="more").path
    out = Path(tmp_path / "near")
    with open_runner(1) as runner:
        sign(made, Path(tmp_path / "s"), Fuzzy(seed=1), runner, lambda *_: None)
        with pytest.raises(InputError, match=r"were made with .*'seed': 1.* Sign all corpora with the same"):
            mark_near_duplicates({"": made}, {"": Path(tmp_path / "s")}, out, FUZZY, runner, print)
        sign(made, Path(tmp_path / "t"), FUZZY, runner, lambda *_: None)
        with pytest.raises(InputError, match=r"signatures are of other documents than the 5 given"):
            mark_near_duplicates({"": more}, {"": Path(tmp_path / "t")}, out, FUZZY, runner, print)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"bands": 25}, "bands=25 does not divide perms=286"), ({"containment": 0.0}, "containment=0.0"),
     ({"cap": 0}, "cap=0")],
)  # fmt: skip
def test_impossible_parameters_are_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        Fuzzy(**wrong)


def test_signatures_of_other_names_than_the_documents_are_refused(documents, out):
    made = documents([("d", "a", prose(1, 50))])
    with pytest.raises(ConfigError, match=r"signed has b, documents a, so it is unknown whose they are"):
        near_duplicates.body(out(), {"a": made}, signed={"b": made})
