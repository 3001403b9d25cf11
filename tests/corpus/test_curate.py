"""Curation as a whole: where every document ends, why, and that nothing but the input decides it."""

import itertools
import json

import pyarrow as pa
import pytest
from sample_archives import prose

from lmlab.core.errors import InputError
from lmlab.corpus import Decontamination, Documents, Fuzzy, Holdout, curate
from lmlab.corpus.curating import Recipe, curate_all
from lmlab.corpus.normalizing import normalize
from lmlab.corpus.schema import document_id
from lmlab.dataflow import write_parquet

SMALL = Holdout(min_bytes=4_000)


def folders(path, rows_of):
    kept = {name: rows_of(path / name) for name in ("train", "holdout")}
    return kept | {f.name: rows_of(f) for f in (path / "rejected").list()}


def files(path):
    return {p.relative_to(path): p.read_bytes() for p in path.walk()}


def test_every_document_ends_in_exactly_one_place(documents, out, enough, rows_of):
    rows = [*enough, ("prose", "prose/copy", enough[50][2]), ("prose", "prose/blank", " \n ")]
    corpus = curate.body(out(), documents(rows), holdout=SMALL, workers=1)
    found = folders(out().path, rows_of)
    sources = [row["source_id"] for place in found.values() for row in place]
    assert sorted(sources) == sorted(source for _, source, _ in rows)
    assert {name: [row["source_id"] for row in found[name]] for name in ("exact", "normalize")} == {
        "exact": ["prose/copy"] if enough[50][1] < "prose/copy" else [enough[50][1]],
        "normalize": ["prose/blank"],
    }
    assert corpus.documents == len(found["train"])
    assert corpus.holdout_documents == len(found["holdout"])
    assert corpus.size_bytes == sum(len(row["text"].encode()) for row in found["train"])
    assert corpus.domains == ("code", "prose")


def test_stages_add_up(documents, out, enough):
    rows = [*enough, ("prose", "prose/copy", enough[50][2]), ("prose", "prose/blank", " \n ")]
    corpus = curate.body(out(), documents(rows), holdout=SMALL, workers=1)
    table = json.loads((out().path / "stages.json").read_text())
    stages = table["stages"]
    assert [row["stage"] for row in stages] == [
        "normalize", "exact", "fuzzy", "holdout", "decontaminate",
    ]  # fmt: skip
    for before, after in itertools.pairwise(stages):
        assert before["documents_out"] == after["documents_in"]
        assert before["bytes_out"] == after["bytes_in"]
    for row in stages:
        assert row["documents_in"] - row["documents_out"] == sum(row["dropped"].values())
    assert stages[0]["documents_in"] == 82
    assert stages[-1]["documents_out"] == corpus.documents
    assert stages[-1]["bytes_out"] == corpus.size_bytes == sum(d["train_bytes"] for d in table["domains"])


def test_same_bytes_again_and_for_any_number_of_workers(documents, out, enough):
    made = documents(enough, parts=3)
    for name, workers in (("a", 1), ("b", 2), ("c", 3)):
        curate.body(out(name), made, holdout=SMALL, workers=workers)
    assert files(out("a").path) == files(out("b").path) == files(out("c").path)
    assert not [name for name in files(out("a").path) if "work" in name]


def test_same_bytes_wherever_the_tasks_run(documents, out, enough, any_runner):
    made = documents(enough, parts=3)
    curate.body(out("here"), made, holdout=SMALL, workers=1)
    with any_runner(2) as runner:
        recipe = Recipe(Fuzzy(), SMALL, Decontamination())
        curate_all(made.path, out("there").path, recipe, runner, lambda *_: None)
    assert files(out("here").path) == files(out("there").path)


def test_order_and_parts_of_the_input_do_not_matter(documents, out, enough, rows_of):
    curate.body(out("a"), documents(enough, parts=1, name="one"), holdout=SMALL, workers=1)
    curate.body(out("b"), documents(enough[::-1], parts=4, name="four"), holdout=SMALL, workers=1)
    assert folders(out("a").path, rows_of) == folders(out("b").path, rows_of)


def test_near_duplicates_of_held_out_documents_are_not_in_train(documents, out, enough, rows_of):
    twins = [(domain, f"{source}/twin", text.replace("ba", "be", 3) + "\n\n" + prose(9000 + i, 15))
             for i, (domain, source, text) in enumerate(enough)]  # fmt: skip
    curate.body(out(), documents([*enough, *twins]), holdout=SMALL, workers=1)
    found = folders(out().path, rows_of)
    held = {row["source_id"].removesuffix("/twin") for row in found["holdout"]}
    trained = {row["source_id"].removesuffix("/twin") for row in found["train"]}
    assert len(held) >= 4
    assert not held & trained
    assert len(found["fuzzy"]) == 80
    assert all(row["reason"].startswith("near duplicate: ") for row in found["fuzzy"])


def test_training_document_with_a_held_out_paragraph_is_rejected(documents, out, enough, rows_of):
    curate.body(out("first"), documents(enough, name="clean"), holdout=SMALL, workers=1)
    leaked = rows_of(out("first").path / "holdout")[0]["text"].split("\n\n")[2]
    rows = [*enough, ("prose", "leak", f"{prose(7000, 300)}\n\n{leaked}\n\n{prose(7001, 300)}")]
    curate.body(out("second"), documents(rows, name="leaky"), holdout=SMALL, workers=1)
    (rejected,) = rows_of(out("second").path / "rejected" / "decontaminate")
    assert rejected["source_id"] == "leak"
    held = {row["id"] for row in rows_of(out("second").path / "holdout")}
    assert rejected["reason"].startswith(
        "repeats held-out text: 1.00 of the 48 runs of paragraph 6 stand in "
    )
    assert rejected["reason"].rpartition(" ")[2] in held


def test_whitespace_bomb_is_cut_and_its_id_is_that_of_the_cut_text(documents, out, enough, rows_of):
    bomb = "start" + " \t\n" * 2_000_000 + "end"
    curate.body(out(), documents([*enough, ("prose", "bomb", bomb)]), holdout=SMALL, workers=1)
    found = [
        row for place in folders(out().path, rows_of).values() for row in place if row["source_id"] == "bomb"
    ]
    assert [len(row["text"]) for row in found] == [5 + 128 + 3]
    assert found[0]["id"] == document_id(found[0]["text"])


def test_gap_of_128_is_kept_and_longer_ones_keep_their_start():
    assert normalize("a" + " " * 128 + "b") == "a" + " " * 128 + "b"
    assert normalize("a" + "\n" + " " * 200 + "b") == "a\n" + " " * 127 + "b"


def test_texts_that_become_equal_by_normalizing_are_exact_duplicates(documents, out, enough, rows_of):
    body = enough[0][2]
    rows = [*enough, ("prose", "a", body + " " * 200 + "x"), ("prose", "b", body + " " * 300 + "x")]
    curate.body(out(), documents(rows, parts=4), holdout=SMALL, workers=1)
    (rejected,) = rows_of(out().path / "rejected" / "exact")
    assert (rejected["source_id"], rejected["reason"]) == ("b", "exact duplicate: of a")


def test_one_character_and_unusual_documents_pass(documents, out, enough, rows_of):
    odd = ["x", "漢", "\0", "👩‍👩‍👧", "?!", "\u202e backwards", "a" * 300_000]
    rows = [*enough, *(("prose", f"odd/{i}", text) for i, text in enumerate(odd))]
    curate.body(out(), documents(rows), holdout=SMALL, workers=1)
    found = folders(out().path, rows_of)
    assert {row["text"] for name in ("train", "holdout") for row in found[name]} >= set(odd)


@pytest.mark.parametrize("rows", [[], [("prose", "blank", "  \n")]])
def test_empty_corpus_is_an_input_error(documents, out, rows):
    with pytest.raises(InputError, match="holds no text"):
        curate.body(out(), documents(rows), workers=1)


def test_domain_too_small_to_hold_out_of_is_named(documents, out, enough):
    with pytest.raises(InputError, match="Domain 'tiny' has 1 documents"):
        curate.body(out(), documents([*enough, ("tiny", "tiny/1", "only one")]), holdout=SMALL, workers=1)


def test_missing_part_is_noticed(documents, out, enough):
    made = documents(enough, parts=3)
    (made.path / "part-00001-of-00003.parquet").remove()
    with pytest.raises(InputError, match="holds 2 of 3 document parts"):
        curate.body(out(), made, workers=1)


def test_folder_without_documents_is_named(out, tmp_path):
    with pytest.raises(InputError, match=r"nothing holds no Parquet and no JSON lines"):
        curate.body(out(), Documents.at(str(tmp_path / "nothing"), documents=0, size_bytes=0), workers=1)


def test_documents_without_a_domain_are_refused(documents, out, enough):
    made = documents(enough, parts=1)
    write_parquet(made.path / "part-00000-of-00001.parquet", pa.table({"text": ["a"]}))
    with pytest.raises(InputError, match=r"part-00000-of-00001.parquet:0 has no domain in its meta '{}'"):
        curate.body(out(), made, workers=1)
