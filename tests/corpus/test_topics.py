"""Embeddings and topics recover known domains; codebooks and boundaries keep their meaning later on."""

import numpy as np
import pyarrow as pa
import pytest
from sample_archives import WORDS

from lmlab.core.errors import InputError
from lmlab.corpus import Attributes, Buckets, Embeddings, Topics, buckets, embed, topics
from lmlab.corpus.schema import document_id
from lmlab.corpus.traits.embed import vectors_of
from lmlab.corpus.traits.topics import assign_topics, sample_scores
from lmlab.dataflow import read_parquet, write_parquet
from lmlab.storage import read_json

DOMAINS = ("law", "sea", "sky")


def about(domain, seed):
    """Words of one third of the vocabulary, and some that all domains share."""
    draw = np.random.default_rng(seed)
    own = WORDS[DOMAINS.index(domain) * 30 : DOMAINS.index(domain) * 30 + 20]
    return " ".join(np.r_[draw.choice(own, 40), draw.choice(WORDS, 20)])


def made_of(step, cls, output, *arguments, **keywords):
    return cls.at(output.path, **step.body(output, *arguments, **keywords).result)


@pytest.fixture
def corpus(documents):
    rows = [
        (domain, f"{domain}{i}", about(domain, 100 * k + i))
        for k, domain in enumerate(DOMAINS)
        for i in range(50)
    ]
    return documents(rows, parts=2)


@pytest.fixture
def embedded(corpus, out):
    return made_of(embed, Embeddings, out("embeddings"), corpus, dims=16, workers=1)


@pytest.fixture
def clustered(corpus, embedded, out):
    return made_of(topics, Topics, out("topics"), corpus, embedded, count=3, workers=1)


def parts(folder):
    return [path for path in folder.list() if path.name.startswith("part-")]


def rows(folder):
    return [row for path in parts(folder) for row in read_parquet(path).to_pylist()]


def test_embeddings_have_length_one_and_are_near_within_a_domain(corpus, embedded):
    (table,) = [pa.concat_tables(read_parquet(path) for path in parts(embedded.path))]
    vectors = vectors_of(table)
    assert vectors.shape == (150, 16)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(150), abs=0.01)
    place = {key: i for i, key in enumerate(table.column("id").to_pylist())}
    domain = np.empty(150, int)
    for k, name in enumerate(DOMAINS):
        for i in range(50):
            domain[place[document_id(about(name, 100 * k + i))]] = k
    same = domain[:, None] == domain[None, :]
    cosine = vectors @ vectors.T
    assert cosine[same].mean() > cosine[~same].mean() + 0.3


def test_topics_recover_the_domains_and_are_told_by_their_words(clustered):
    found = read_json(clustered.path / "topics.json")["topics"]
    assert clustered.purity > 0.9
    assert sum(row["documents"] for row in found) == clustered.documents == 150
    for row in found:
        domain = max(row["domains"], key=row["domains"].get)
        start = DOMAINS.index(domain) * 30
        assert len(set(row["words"]) & set(WORDS[start : start + 20].tolist())) >= 6


def test_drawings_full_of_numbers_are_one_topic(documents, out):
    draw = np.random.default_rng(3)
    strokes = [[f"{a}{b}9{a}9{c}" for a in "hvlacz" for b in range(3)] for c in "mnpqs"]  # in five styles
    drawings = [
        ("svg", f"icon{i}", f'<svg path="{" ".join(draw.choice(strokes[i % 5], 40))}" fill="none" {i}/>')
        for i in range(200)
    ]
    texts = [(domain, f"{domain}{i}", about(domain, 7 * i)) for domain in DOMAINS[:2] for i in range(40)]
    made = documents(drawings + texts)
    vectors = made_of(embed, Embeddings, out("vectors"), made, dims=8, workers=1)
    clustered = made_of(topics, Topics, out("clusters"), made, vectors, count=3, workers=1)
    found = read_json(clustered.path / "topics.json")["topics"]
    assert sorted(row["documents"] for row in found) == [40, 40, 200]


def test_the_same_bytes_come_out_wherever_the_tasks_run(corpus, embedded, clustered, out, any_runner):
    again = made_of(embed, Embeddings, out("again"), corpus, dims=16, workers=2)
    assert [p.read_bytes() for p in again.path.walk()] == [p.read_bytes() for p in embedded.path.walk()]
    told = made_of(topics, Topics, out("told"), corpus, again, count=3, workers=2)
    assert [p.read_bytes() for p in told.path.walk()] == [p.read_bytes() for p in clustered.path.walk()]


def test_new_documents_fall_into_the_frozen_topics(clustered, embedded, documents, out):
    later = documents([("sea", str(i), about("sea", 9000 + i)) for i in range(12)], parts=1, name="later")
    vectors = made_of(embed, Embeddings, out("new"), later, fitted=embedded, workers=1)
    told = made_of(topics, Topics, out("new-topics"), later, vectors, codebook=clustered, workers=1)
    table = read_json(clustered.path / "topics.json")["topics"]
    (sea,) = [row["topic"] for row in table if max(row["domains"], key=row["domains"].get) == "sea"]
    assert told.topics == 3
    assert {row["topic"] for row in rows(told.path)} == {sea}


def test_a_codebook_of_another_space_is_refused(clustered, corpus, out):
    other = made_of(embed, Embeddings, out("other"), corpus, dims=8, workers=1)
    with pytest.raises(InputError, match="16 dims"):
        topics.body(out("told"), corpus, other, codebook=clustered, workers=1)


def test_a_small_corpus_is_told_to_ask_for_less(documents, out):
    few = documents([("a", "a", "one two three"), ("a", "b", "two three four")])
    with pytest.raises(InputError, match="fewer dims"):
        embed.body(out("few"), few, workers=1)
    vectors = made_of(embed, Embeddings, out("vectors"), few, dims=1, workers=1)
    with pytest.raises(InputError, match="fewer"):
        topics.body(out("topics"), few, vectors, count=5, workers=1)


def test_texts_without_words_are_embedded_as_zeros_and_break_nothing(corpus, embedded, documents, out):
    odd = documents(
        [("a", str(i), text) for i, text in enumerate((" ", "\0", "qqq zzz", "!"))], parts=3, name="odd"
    )
    vectors = made_of(embed, Embeddings, out("odd-vectors"), odd, fitted=embedded, workers=1)
    assert not any(np.any(row["embedding"]) for row in rows(vectors.path))


@pytest.fixture
def scored(corpus, out):
    """Scores that grow with the id, which is as good as chance."""
    made = out("scores")
    for path in parts(corpus.path):
        ids = read_parquet(path, ["id"])
        scores = pa.array([int(key[:8], 16) / 2**32 for key in ids.column("id").to_pylist()], pa.float32())
        write_parquet(made.path / path.name, ids.append_column("score", scores))
    return Attributes.at(made.path, documents=150, columns=("score",))


def test_buckets_cut_each_topic_into_equal_parts_of_rising_quality(corpus, clustered, scored, out):
    made = made_of(buckets, Buckets, out("buckets"), corpus, clustered, scored, quantiles=5, workers=1)
    table = read_json(made.path / "buckets.json")["topics"]
    assert len(table) == 3
    for row in table:
        counts = [piece["documents"] for piece in row["quantiles"]]
        assert sum(counts) == row["documents"]
        assert max(counts) - min(counts) <= 2
        bounds = [piece["lower"] for piece in row["quantiles"]] + [row["quantiles"][-1]["upper"]]
        assert bounds == sorted(bounds)
        assert (bounds[0], bounds[-1]) == (0, 1)
        for name in ("documents", "bytes"):
            assert sum(piece[name] for piece in row["quantiles"]) == row[name]
        assert sum(sum(piece["domains"].values()) for piece in row["quantiles"]) == row["documents"]
    scores = {row["id"]: row["score"] for row in rows(scored.path)}
    for row in rows(made.path):
        piece = table[row["topic"]]["quantiles"][row["quantile"]]
        assert piece["lower"] <= scores[row["id"]] <= piece["upper"]


def test_of_a_large_corpus_only_some_words_and_scores_are_held(corpus, embedded, clustered, scored):
    part = parts(corpus.path)[0]
    seen = assign_topics(embedded.path, clustered.path, [], part)
    assert sum(topic["documents"] for topic in seen.values()) == read_parquet(part).num_rows
    assert not any(name.startswith("word ") for topic in seen.values() for name in topic)
    drawn = sample_scores(clustered.path, scored.path, 3, part)
    assert [len(scores) for scores in drawn.values()] == [3, 3, 3]


def test_boundaries_can_be_used_again_for_other_scores(corpus, clustered, scored, out):
    first = made_of(buckets, Buckets, out("first"), corpus, clustered, scored, workers=1)
    better = out("better")
    for path in parts(scored.path):
        table = read_parquet(path)
        raised = pa.array(np.sqrt(table.column("score").to_numpy()))
        write_parquet(better.path / path.name, table.set_column(1, "score", raised))
    raised = Attributes.at(better.path, documents=150, columns=("score",))
    second = made_of(buckets, Buckets, out("second"), corpus, clustered, raised, boundaries=first, workers=1)
    before, after = (read_json(made.path / "buckets.json") for made in (first, second))
    assert before["edges"] == after["edges"]
    assert (
        after["topics"][0]["quantiles"][-1]["documents"] > before["topics"][0]["quantiles"][-1]["documents"]
    )
