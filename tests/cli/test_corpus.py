"""`lmlab corpus` as it is typed, on a folder as people have them."""

import bz2
import gzip
import io
import json
import shutil
import tarfile
import zipfile
from pathlib import Path as LocalPath

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmlab.cli.main import main
from lmlab.corpus import folder as folder_reading, reading
from lmlab.corpus.schema import parts_of
from lmlab.dataflow import read_jsonl, read_parquet
from lmlab.storage import Path

STORY = (
    "The harbour lay quiet when the last boats came in, and the keeper of the light wrote their names "
    "into the book as he had done every evening since the war. He counted eleven, but twelve had left, and "
    "he looked for a long time at the line between the sea and the sky before he put the pen away. "
)
NOTES = (
    "We met on Tuesday to talk about the garden and agreed that the old pear tree will stay one more year. "
    "Anna brings the ladder, and whoever comes first opens the gate for the others and feeds the hens. "
)
INVITATION = (
    "The choir sings in the old mill again this year, and everybody who has a voice is welcome on the hill. "
    "Bring a lamp for the way back, because the path along the brook has no light and the moon will be new. "
    "Whoever wants to stay for the night writes to anna.weber@millchoir.de, so that there is bread for all. "
)
QUESTION = (
    "Natalia sold clips to forty eight of her friends in April and then she sold half as many in May so "
    "how many clips did Natalia sell altogether in April and May"
)


@pytest.fixture
def folder(tmp_path) -> LocalPath:
    """Text, a page, mail, rows, an archive, a picture, a broken file and one that can't be text."""
    made = tmp_path / "mine"
    (made / "stories").mkdir(parents=True)
    (made / ".git").mkdir()
    (made / ".git" / "config").write_text("not a document")
    (made / "stories" / "harbour.txt").write_text(STORY * 3)
    (made / "stories" / "harbour copy.txt").write_text(STORY * 3)
    (made / "stories" / "harbour new.txt").write_text("Newer. " + STORY * 3)
    (made / "garden.html").write_text(
        f"<html><nav>Home | About</nav><body><h1>Garden</h1><p>{NOTES}</p></body>"
    )
    (made / "contact.md").write_text(INVITATION)
    rows = [
        {"content": f"{STORY}\n\nQuestion: {QUESTION}?"},
        {"content": "Und nun zu etwas ganz anderem, liebe Leute."},
    ]
    (made / "rows.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    chat = {"messages": [{"role": "user", "content": "Hello there"}, {"role": "assistant", "content": "Hi."}]}
    (made / "chat.jsonl").write_text(json.dumps(chat) + "\n")
    (made / "odd.jsonl").write_text('{"label": 3}\n')
    (made / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0" + bytes(range(256)))
    (made / "cut.tar.gz").write_bytes(_tar("inside.txt", b"text " * 40_000)[:200])
    (made / "whole.tgz").write_bytes(_tar("deep/inside.txt", b"Bonjour tout le monde, comment allez-vous ?"))
    return made


def _tar(name: str, data: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


@pytest.fixture
def call(capfd):
    """Run one command line; gives exit code, what it printed, what it said on stderr."""

    def go(*words: object) -> tuple[int, str, str]:
        code = main(["corpus", *map(str, words), "--workers", "1"])
        return code, *capfd.readouterr()

    return go


@pytest.fixture
def corpus(call):
    """A verb that must succeed; gives its JSON."""

    def go(*words: object):
        code, out, err = call(*words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return go


def documents(place: LocalPath) -> dict[str, str]:
    rows = [row for part in parts_of(Path(str(place))) for row in read_parquet(part).to_pylist()]
    return {row["source_id"]: row["text"] for row in rows}


def test_inspect_reads_every_kind_of_file_and_names_what_it_cannot(corpus, folder):
    found = corpus("inspect", folder)
    assert found["documents"] == 9
    assert found["distinct"] == 8
    assert found["kinds"] == {".txt": 4, ".gz": 2, ".html": 1, ".md": 1, ".jsonl": 1}
    reasons = {row["source_id"]: row["reason"] for row in found["left_out"]}
    assert sorted(reasons) == ["mine/cut.tar.gz", "mine/odd.jsonl", "mine/picture.png"]
    assert "truncated" in reasons["mine/cut.tar.gz"]
    assert "no field known for text, only label" in reasons["mine/odd.jsonl"]
    assert reasons["mine/picture.png"] == "no text: it holds null bytes"


def test_a_field_of_ones_own_is_named(corpus, folder):
    (folder / "odd.jsonl").write_text('{"label": "a text at last"}\n')
    found = corpus("inspect", folder / "odd.jsonl", "--text-field", "label")
    assert [row["text"] for row in found["samples"]] == ["a text at last"]


def test_stats_tell_domains_and_languages(corpus, folder):
    found = corpus("stats", folder)
    assert {row["domain"]: row["documents"] for row in found["domain"]} == {"mine": 6, "stories": 3}
    assert {row["language"] for row in found["language"]} >= {"en", "de", "fr"}


def test_dedup_names_each_pair_and_writes_the_rest(corpus, folder, tmp_path):
    found = corpus("dedup", folder, "--out", tmp_path / "kept")
    pairs = {(row["dropped"], row["kept"]) for row in found["duplicates"]}
    assert ("mine/stories/harbour.txt", "mine/stories/harbour copy.txt") in pairs
    assert ("mine/stories/harbour copy.txt", "mine/stories/harbour new.txt") in pairs
    kept = documents(tmp_path / "kept")
    assert "mine/stories/harbour new.txt" in kept
    assert not {dropped for dropped, _ in pairs} & kept.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "mine"]
    assert sorted(path.name for path in (tmp_path / "kept" / "rejected").iterdir()) == [
        "exact",
        "extract",
        "near",
    ]


def test_dedup_without_out_changes_and_writes_nothing(call, folder, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    code, out, _ = call("dedup", folder)
    assert code == 0
    assert "1 exact and 1 near duplicates" in out
    assert "nothing was written" in out
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_clean_drops_odd_texts_and_replaces_personal_data(corpus, folder, tmp_path):
    found = corpus("clean", folder, "--out", tmp_path / "clean", "--stages", "near", "registers", "redact")
    dropped = [row["dropped"] for row in found["stages"] if row["stage"] in ("exact", "near", "registers")]
    assert dropped[0] == {"exact duplicate": 1}
    assert dropped[1] == {"near duplicate": 1}
    assert dropped[2].keys() == {"words", "repeated_runs"}
    kept = documents(tmp_path / "clean")
    assert "mine/chat.jsonl:1" not in kept  # a dozen words are no document by Gopher's rules
    assert "anna.weber@millchoir.de" not in kept["mine/contact.md"]
    assert "so that there is bread for all" in kept["mine/contact.md"]


def test_a_stage_can_be_left_out(corpus, folder, tmp_path):
    corpus("clean", folder, "--out", tmp_path / "clean", "--stages", "near", "paragraphs")
    kept = documents(tmp_path / "clean")
    assert "anna.weber@millchoir.de" in kept["mine/contact.md"]
    assert "mine/chat.jsonl:1" in kept


def test_decontaminate_names_document_and_record(corpus, folder, tmp_path):
    evals = tmp_path / "gsm.jsonl"
    evals.write_text(
        json.dumps({"text": QUESTION}) + "\n" + json.dumps({"text": "What is two and two?"}) + "\n"
    )
    found = corpus("decontaminate", folder, evals, "--out", tmp_path / "kept")
    assert [(row["document"], row["eval"]) for row in found["repeats"]] == [("mine/rows.jsonl.gz:1", "gsm")]
    assert "mine/rows.jsonl.gz:1" not in documents(tmp_path / "kept")


def test_extract_writes_json_lines_on_request(corpus, folder, tmp_path):
    corpus("extract", folder, "--out", tmp_path / "docs", "--jsonl")
    rows = [row for path in sorted((tmp_path / "docs").glob("*.zst")) for row in read_jsonl(Path(str(path)))]
    assert len(rows) == 9
    assert {row["meta"]["domain"] for row in rows} == {"mine", "stories"}


def test_the_result_of_one_verb_is_the_input_of_the_next(corpus, folder, tmp_path):
    corpus("extract", folder, "--out", tmp_path / "docs")
    assert corpus("inspect", tmp_path / "docs")["documents"] == 9


def test_topics_say_what_a_folder_is_about(corpus, tmp_path):
    made = tmp_path / "two"
    made.mkdir()
    for i in range(30):
        (made / f"sea{i}.txt").write_text(f"{STORY} boat sail mast harbour anchor {i} " * 3)
        (made / f"tree{i}.txt").write_text(f"{NOTES} pear apple ladder garden hens {i} " * 3)
    found = corpus("topics", made, "--count", 2)
    assert [row["documents"] for row in found] == [30, 30]


def test_known_collections_are_listed(corpus):
    assert len(corpus("sources")) > 50


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dedupe", "x"), "lmlab corpus has no verb 'dedupe'"),
        (("stats",), "takes FOLDER, not nothing"),
        (("stats", "x", "--containment", 0.5), "not --containment"),
        (("inspect", "nowhere"), "nowhere does not exist"),
        (("clean", ".", "--stages", "wash"), "no stage 'wash'"),
        (("quality", "."), "needs --model"),
        (("fetch", "dolma"), "needs --pin"),
    ],
)
def test_mistakes_are_one_line(call, words, said):
    code, out, err = call(*words)
    assert (code, out) == (2, "") or (code, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_folder_with_something_in_it_is_not_written_to(call, folder):
    code, _, err = call("dedup", folder, "--out", folder)
    assert code == 2
    assert "holds files already" in err


@pytest.mark.parametrize("below", ["man1", "de/man1", "share/man/de/man1"])
def test_a_manual_is_no_source_of_macros_wherever_the_folder_begins(corpus, tmp_path, below):
    page = tmp_path / "pages" / below / "ls.1.gz"
    page.parent.mkdir(parents=True)
    page.write_bytes(gzip.compress(b".TH LS 1\n.SH NAME\n\\fBls\\fR \\- list\n"))
    (sample,) = corpus("inspect", tmp_path / "pages")["samples"]
    assert sample["text"] == "NAME\nls - list\n"


def test_packed_files_crawls_and_manuals_are_read_like_any_other(corpus, folder):
    for path in list(folder.iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (folder / "windows.txt").write_bytes(f"{STORY}\r\n".encode("utf-16"))
    (folder / "notes.txt.gz").write_bytes(gzip.compress(NOTES.encode()))
    (folder / "notes.txt.bz2").write_bytes(
        bz2.compress(STORY.encode()[:90]) + bz2.compress(STORY.encode()[90:])
    )
    (folder / "man" / "man1").mkdir(parents=True)
    (folder / "man" / "man1" / "ls.1.gz").write_bytes(gzip.compress(b".TH LS 1\n.SH NAME\nls \\- list\n"))
    page = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>{INVITATION}"
    head = "WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.example/choir\r\n"
    head += f"Content-Type: application/http\r\nContent-Length: {len(page)}\r\n\r\n"
    (folder / "crawl.warc.gz").write_bytes(gzip.compress(f"{head}{page}\r\n\r\n".encode()))
    corpus("extract", folder, "--out", folder.parent / "out")
    assert documents(folder.parent / "out") == {
        "mine/windows.txt": f"{STORY}\n",
        "mine/notes.txt.gz": NOTES,
        "mine/notes.txt.bz2": STORY,
        "mine/man/man1/ls.1.gz": "NAME\nls - list\n",
        "mine/crawl.warc.gz/http://a.example/choir": INVITATION.strip(),
    }


def test_broken_rows_and_links_to_nowhere_stop_nothing(corpus, folder):
    (folder / "odd.jsonl").write_text('cut off\n{"content": "a good row"}\n[1]\n{"content": "another"}\n')
    (folder / "gone.txt").symlink_to("nowhere")
    (folder / "loop").symlink_to(".")
    found = corpus("inspect", folder)
    assert found["documents"] == 11
    reasons = {row["source_id"]: row["reason"] for row in found["left_out"]}
    assert "JSONDecodeError" in reasons["mine/odd.jsonl:1"]
    assert "what 'document' reads" in reasons["mine/odd.jsonl:3"]
    assert "nowhere" not in reasons["mine/gone.txt"]
    assert "does not exist" in reasons["mine/gone.txt"]
    assert "a link to a folder" in reasons["mine/loop"]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (
            {"Body": "Ann has 3 hens.", "Question": "And 2 more?", "Answer": 5},
            "Ann has 3 hens.\n\nAnd 2 more?\n\n5",
        ),
        (
            {"task_id": 1, "prompt": "def one():\n", "canonical_solution": "    return 1\n"},
            "def one():\n    return 1",
        ),
        (
            {"text": "Write one.", "code": "one = 1", "test_list": ["assert one"]},
            "Write one.\n\none = 1\n\nassert one",
        ),
        ({"messages_display": "user: Hello"}, "user: Hello"),
    ],
    ids=["svamp", "humaneval", "mbpp", "tau_bench"],
)
def test_rows_of_well_known_sets_are_told_by_their_fields(corpus, tmp_path, row, text):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert [one["text"].strip() for one in corpus("inspect", tmp_path / "rows.jsonl")["samples"]] == [text]


def test_large_files_are_shared_by_several_tasks(corpus, tmp_path, monkeypatch):
    rows = [{"text": f"{i} {STORY}"} for i in range(40)]
    (tmp_path / "mine").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "mine" / "rows.parquet", row_group_size=10)
    with zipfile.ZipFile(tmp_path / "mine" / "texts.zip", "w") as archive:
        for row in rows:
            archive.writestr(f"{row['text'][:2].strip()}.txt", row["text"].upper())
    corpus("extract", tmp_path / "mine", "--out", tmp_path / "whole")
    monkeypatch.setattr(reading, "SPLIT_BYTES", 1000)
    monkeypatch.setattr(folder_reading, "TASK_BYTES", 1000)
    corpus("extract", tmp_path / "mine", "--out", tmp_path / "split")
    whole, split = (sorted(documents(tmp_path / name).values()) for name in ("whole", "split"))
    assert len(split) == 80
    assert whole == split
