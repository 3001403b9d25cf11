"""Taking in a source: what its manifest does not allow is refused, and the slices never mix."""

import pytest

from lmlab.core.errors import ConfigError, InputError
from lmlab.corpus import Manifest, Raw, fingerprint, ingest
from lmlab.corpus.manifest import Use
from lmlab.corpus.schema import document_id
from lmlab.dataflow import read_parquet, write_parquet
from lmlab.storage import Path, write_json

RAW = {
    "archives": [
        {"file": "a.jsonl", "bytes": 5, "sha256": "aa", "license": "MIT", "slices": []},
        {"file": "b.jsonl", "bytes": 7, "sha256": "bb", "license": "MIT", "slices": [{"license": "CC0-1.0"}]},
    ]
}
DATED = Manifest(("MIT", "CC0-1.0"), dev_from="2026-02-01", test_from="2026-03-01")


@pytest.fixture
def taken(documents, out, tmp_path):
    """Runs the step on (text, day) pairs; the slice of each text, in order, and the folder."""
    import orjson
    import pyarrow as pa

    def run(pairs, manifest, purpose: Use = "train"):
        made = documents([("web", f"s/{i}", text) for i, (text, _) in enumerate(pairs)])
        for part in made.path.list():
            table = read_parquet(part)
            metas = [
                orjson.dumps({"created": pairs[int(source[2:])][1]}).decode()
                for source in table.column("source_id").to_pylist()
            ]
            write_parquet(part, table.set_column(3, table.schema.field("meta"), pa.array(metas, pa.string())))
        write_json(Path(tmp_path / "raw" / "manifest.json"), RAW)
        raw = Raw.at(str(tmp_path / "raw"), archives=2, size_bytes=12)
        ingest.body(out("slices"), made, raw, manifest, purpose=purpose, workers=1)
        rows = [
            (document["source_id"], row["slice"])
            for part in out("slices").path.list()
            for document, row in zip(
                read_parquet(made.path / part.name).to_pylist(), read_parquet(part).to_pylist(), strict=True
            )
        ]
        return [name for _, name in sorted(rows, key=lambda row: int(row[0][2:]))]

    return run


def test_documents_are_split_by_their_day(taken):
    days = ["2025-12-31", "2026-01-31T23:59", "2026-02-01", "2026-02-28", "2026-03-01", "2027"]
    pairs = [(f"text {i}", day) for i, day in enumerate(days)]
    assert taken(pairs, DATED) == ["train", "train", "dev", "dev", "test", "test"]


def test_a_text_of_a_later_slice_is_in_no_earlier_one(taken):
    pairs = [("same", "2026-01-01"), ("same", "2026-03-05"), ("own", "2026-01-01"), ("same", "2026-02-05")]
    assert taken(pairs, DATED) == ["held out in test", "test", "train", "held out in test"]


@pytest.mark.parametrize(
    "day", [None, 20260101, "20260101", "2026/01/02", "2026-1-2", "2026", "yesterday", ""]
)
def test_a_document_without_a_day_is_in_no_slice(taken, day):
    assert taken([("text", day)], DATED) == ["no date"]


def test_a_sample_is_the_same_for_all_and_exact(taken):
    pairs = [(f"text {i}", None) for i in range(40)]
    found = taken(pairs, Manifest(("MIT", "CC0-1.0"), max_documents=7))
    first = sorted(document_id(text) for text, _ in pairs)[:7]
    assert [name == "train" for name in found] == [document_id(text) in first for text, _ in pairs]


def test_documents_with_personal_data_are_left_out_where_the_terms_say_so(taken):
    pairs = [("write to ada@lovelace.org", None), ("write to nobody", None)]
    manifest = Manifest(("MIT", "CC0-1.0"), identities="remove")
    assert taken(pairs, manifest) == ["personal data", "train"]
    assert manifest.redacted == ("key", "secret")
    assert "email" in Manifest(("MIT",)).redacted


def test_another_purpose_is_refused(taken):
    with pytest.raises(InputError, match=r"used to evaluate only, and is asked for to train"):
        taken([("text", None)], Manifest(("MIT", "CC0-1.0"), use="evaluate"))
    assert taken([("text", None)], Manifest(("MIT", "CC0-1.0"), use="evaluate"), "evaluate") == ["train"]


def test_another_content_is_refused_with_both_fingerprints(taken):
    pinned = Manifest(("MIT", "CC0-1.0"), fingerprint=fingerprint(RAW))
    assert taken([("text", None)], pinned) == ["train"]
    changed = {"archives": [*RAW["archives"][:1], {**RAW["archives"][1], "sha256": "cc"}]}
    with pytest.raises(InputError, match=rf"{fingerprint(RAW)}, the manifest is for {fingerprint(changed)}"):
        taken([("text", None)], Manifest(("MIT", "CC0-1.0"), fingerprint=fingerprint(changed)))


def test_the_license_of_a_slice_counts_and_a_foreign_one_is_named(taken):
    with pytest.raises(InputError, match=r"b\.jsonl is under CC0-1\.0, the manifest allows MIT"):
        taken([("text", None)], Manifest(("MIT",)))


@pytest.mark.parametrize("given", [{"dev_from": "2026"}, {"dev_from": "2026-02", "test_from": "2026-01"}])
def test_a_split_needs_both_days_in_order(given):
    with pytest.raises(ConfigError, match="make no split"):
        Manifest(("MIT",), **given)


def test_a_day_that_does_not_compare_is_refused():
    with pytest.raises(ConfigError, match=r"'1\.2\.2026' is no day to compare others with"):
        Manifest(("MIT",), dev_from="1.2.2026", test_from="2026-02-01")


def test_a_sample_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="takes nothing"):
        Manifest(("MIT",), max_documents=0)
