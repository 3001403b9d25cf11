"""The report as a file: self-contained, true to its artifacts, safe against hostile text, without holes."""

import json
import re
from html.parser import HTMLParser

import msgspec
import pytest

from lmlab.core.errors import ArtifactError
from lmlab.reports import report
from lmlab.reports.excerpts import shorten
from lmlab.reports.facts import Facts
from lmlab.reports.page import comparison, verdict
from lmlab.science.bets import Tampered
from lmlab.storage import Path, read_json, write_json

VOID = {"meta", "link", "br", "hr", "img", "input", "col", "wbr", "source"}


class Page(HTMLParser):
    """Elements, links, texts of a page; checks that tags are balanced."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.addresses, self.script = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.addresses += [
            (tag, v) for k, v in attributes if k in ("src", "href", "srcset", "action", "data")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.script.append(data)

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)


def test_the_page_is_whole_and_names_nothing_outside(built):
    _, result, text = built
    page = Page(text)
    assert result.file == "report.html"
    assert len(text.encode()) < 1_000_000
    assert page.open == []
    assert page.count("svg") == 2 * 5
    outside = [
        (tag, place) for tag, place in page.addresses if re.match(r"\w+:|//", place) and place != "data:,"
    ]
    assert outside == []
    assert all(tag == "a" for tag, place in page.addresses if place.startswith("../"))
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert [attributes["type"] for tag, attributes in page.tags if tag == "script"] == ["application/json"]


def test_links_lead_to_the_artifacts(built):
    experiment, _, text = built
    links = [place for tag, place in Page(text).addresses if tag == "a"]
    assert len(links) == 14
    for link in links:
        assert (experiment.out.path.local / link).is_dir(), link


def test_the_facts_in_the_page_are_those_of_the_files(built):
    experiment, result, text = built
    (island,) = Page(text).script
    facts = msgspec.json.decode(island, type=Facts)
    assert json.loads(msgspec.json.encode(facts)) == json.loads(island)
    scores = read_json(experiment.arguments["evaluation"].path / "scores.json")
    assert facts.scores.macro == scores["macro"]
    assert facts.run.result["flops"] == experiment.arguments["run"].flops
    assert facts.bet.digest == experiment.arguments["bet"].digest
    assert facts.bet.call.outcome == experiment.arguments["called"].outcome
    assert [node.address for node in facts.lineage][:2] == [
        "raw/quickstart@2026.11.30",
        "documents/quickstart@2026.11.30",
    ]
    assert f"{scores['macro']['grug']:.3f}" in result.headline
    rows = [
        json.loads(line)
        for line in (experiment.arguments["run"].path / "metrics.jsonl").read_text().splitlines()
    ]
    readings = [row["holdout/macro_bpb"] for row in rows if "holdout/macro_bpb" in row]
    assert facts.run.curves["holdout/macro_bpb"].value == pytest.approx(readings)


def test_every_number_of_the_score_table_is_on_the_page_and_the_best_is_marked(built):
    experiment, _, text = built
    scores = read_json(experiment.arguments["evaluation"].path / "scores.json")
    for row in scores["domains"]:
        best = min(row["bpb"], key=row["bpb"].get)
        assert f'<td class="best">{row["bpb"][best]:.3f}</td>' in text
        for value in row["bpb"].values():
            assert f"{value:.3f}</td>" in text


def test_the_page_says_when_the_bet_was_filed_and_how_to_do_it_again(built):
    _, _, text = built
    assert re.search(r"It was filed 2026-11-30 00:55:\d\d UTC, 200 ms before the run began", text)
    assert "lmlab run experiments/quickstart.py" in text
    assert "/home/ada" not in re.sub(r"<script.*</script>", "", text, flags=re.DOTALL)
    assert "with changes that were not committed" in text


def test_hostile_text_is_shown_and_never_obeyed(built):
    _, _, text = built
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", text)
    assert "x" * 400 not in text
    (island,) = Page(text).script
    assert not re.search("[<>&]", island)


def test_a_shortened_text_says_so():
    assert shorten("short") == "short"
    assert shorten("a\n" * 50, lines=2) == "a\na…"
    assert len(shorten("y" * 1_000_000)) == 321
    assert shorten("a\x00b\u202ec\x1b[31m") == "a·b·c·[31m"
    assert shorten("\ud800x") == "·x"


def test_the_same_artifacts_give_the_same_bytes(experiment, built):
    report.body(experiment.out, **experiment.arguments)
    assert (experiment.out.path / "report.html").read_text() == built[2]


@pytest.mark.parametrize(
    ("artifact", "file", "field"),
    [
        ("evaluation", "scores.json", "macro"),
        ("evaluation", "scores.json", "domains"),
        ("corpus", "stages.json", "stages"),
        ("called", "call.json", "order"),
        ("run", "recipe.json", None),
        ("run", "metrics.jsonl", None),
        ("bet", "bet.json", None),
        ("called", "call.json", None),
        ("samples", "samples.json", None),
        ("exported", ".artifact.json", None),
    ],
)
def test_a_missing_fact_is_an_error_naming_file_and_field(experiment, artifact, file, field):
    place = experiment.arguments[artifact].path / file
    if field is None:
        place.remove()
    else:
        document = read_json(place)
        del document[field]
        write_json(place, document)
    with pytest.raises(ArtifactError) as caught:
        report.body(experiment.out, **experiment.arguments)
    message = str(caught.value)
    assert str(place.parent) in message
    assert "record" in message if file == ".artifact.json" else file in message
    assert field is None or f"`{field}`" in message
    assert not (experiment.out.path / "report.html").exists()


def test_a_score_without_a_column_is_an_error(experiment):
    place = experiment.arguments["evaluation"].path / "scores.json"
    scores = read_json(place)
    del scores["domains"][3]["bpb"]["zstd -19"]
    write_json(place, scores)
    with pytest.raises(ArtifactError, match=r"scores.json has no 'zstd -19' in domains\[3\].bpb"):
        report.body(experiment.out, **experiment.arguments)


def test_an_artifact_of_another_kind_is_refused(experiment):
    swapped = {**experiment.arguments, "ladder": experiment.arguments["corpus"]}
    with pytest.raises(ArtifactError, match=r"record of corpus/quickstart@2026.11.30 has no 'rungs'"):
        report.body(experiment.out, **swapped)


def test_an_edited_bet_is_not_reported(experiment):
    place = experiment.arguments["bet"].path / "bet.json"
    place.write_text(re.sub(r'"low":[\d.]+', '"low":0.1', place.read_text()))
    with pytest.raises(Tampered):
        report.body(experiment.out, **experiment.arguments)


def test_a_call_of_another_bet_is_not_reported(experiment):
    place = experiment.arguments["called"].path / "call.json"
    write_json(place, {**read_json(place), "bet": "00" * 32})
    with pytest.raises(ArtifactError, match="calls the bet 000000000000…"):
        report.body(experiment.out, **experiment.arguments)


def test_a_corpus_that_dropped_nothing_is_reported(experiment):
    (experiment.arguments["corpus"].path / "rejected").remove_tree()
    report.body(experiment.out, **experiment.arguments)
    assert "Rejected, and why" not in (experiment.out.path / "report.html").read_text()


def test_an_unreadable_part_is_named(experiment):
    part = experiment.arguments["corpus"].path / "train" / "part-00000-of-00001.parquet"
    part.write_bytes(b"PAR1 is not enough")
    with pytest.raises(ArtifactError, match=r"part-00000-of-00001.parquet is no readable Parquet"):
        report.body(experiment.out, **experiment.arguments)


@pytest.mark.parametrize("count", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_one_domain_or_fifty_make_a_page(tmp_path, experiment_at, count):
    made = experiment_at(Path(tmp_path), tuple(f"domain-{i:02d}" for i in range(count)))
    report.body(made.out, **made.arguments)
    assert (made.out.path / "report.html").size() < 1_000_000


def test_the_verdict_follows_the_numbers(built):
    experiment, _, _ = built
    scores = msgspec.convert(
        read_json(experiment.arguments["evaluation"].path / "scores.json"), Facts.__annotations__["scores"]
    )
    assert verdict(scores) == "grug predicts unseen text better than dense, zstd -19, unigram and 5-gram."
    better = msgspec.structs.replace(scores, macro={**scores.macro, "5-gram": 1.0})
    assert verdict(better).endswith("zstd -19 and unigram, but not better than 5-gram.")
    worst = msgspec.structs.replace(scores, macro={**scores.macro, "grug": 9.0})
    assert "does not predict unseen text better than dense, zstd -19, unigram or 5-gram" in verdict(worst)
    assert comparison(1.0, 2.0) == "50% fewer"
