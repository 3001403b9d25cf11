"""Every page over a real run: what it says, that nothing in it is executed, that its links work anywhere."""

import csv
import html.parser
import io
import time
from urllib.parse import urljoin, urlsplit

import pytest
from web_steps import HOSTILE, NEW, OLD

CORPUS, REPORT, BROKEN = f"web/corpus@{NEW}", f"web/report@{NEW}", f"web/broken@{NEW}"
PREFIX = "http://somewhere.example/proxy/x"


class Links(html.parser.HTMLParser):
    """All addresses that a page names, and every script or handler in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found, self.scripts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.found += [given[name] for name in ("href", "src", "action") if given.get(name)]
        self.scripts += [tag] if tag == "script" and not given.get("src") else []
        self.scripts += [name for name in given if name.startswith("on") or name == "style"]


@pytest.mark.slow
def test_every_link_of_every_page_works_below_a_proxied_path(site):
    pending, seen = [f"{PREFIX}/"], set()
    while pending and len(seen) < 160:
        address = pending.pop(0)
        seen.add(address)
        answer = site.get(address.removeprefix(PREFIX))
        if answer.is_redirect:
            pending.append(urljoin(address, answer.headers["location"]))
            continue
        is_gone = f"/artifact/web/source@{OLD}" in address
        assert answer.status_code == (404 if is_gone else 200), (address, answer.text)
        if not answer.headers["content-type"].startswith("text/html") or "/report/" in address:
            continue
        links = Links(answer.text)
        assert links.scripts == [], address
        for link in links.found:
            there = urljoin(address, link).partition("#")[0]
            assert link.startswith("data:") or there.startswith(PREFIX), (address, link)
            if not link.startswith("data:") and there not in seen and there not in pending:
                pending.append(there)
    assert len(seen) > 60


@pytest.mark.parametrize(
    "path",
    [
        "/",
        f"/artifact/{REPORT}",
        f"/artifact/{BROKEN}",
        f"/artifact/{CORPUS}?tab=log",
        f"/artifact/{CORPUS}?tab=files&path=train&file=part-00000-of-00001.parquet",
        f"/artifact/web/source@{NEW}?tab=files&file=rows.jsonl",
        f"/artifact/{REPORT}?tab=files&file=report.html",
        f"/lineage/{CORPUS}?show={REPORT}",
        f"/corpus/{CORPUS}",
        f"/corpus/web/buckets@{NEW}",
        "/sql?sql=SELECT+text+FROM+'{{" + CORPUS + "}}/train/*.parquet'",
        f"/sql?sql={HOSTILE}",
        f"/artifacts?q={HOSTILE}",
        f"/diff?old={HOSTILE}&new=x",
        f"/nothing/{HOSTILE}",
    ],
)
def test_text_from_artifacts_and_addresses_is_shown_and_never_markup(site, path):
    answer = site.get(path)
    assert "<script>document" not in answer.text
    assert "<img src=x" not in answer.text
    assert "&lt;script&gt;" in answer.text
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'")
    assert "unsafe" not in policy


def test_the_overview_puts_failures_first(site):
    page = site.get("/").text
    assert page.index("Needs attention") < page.index("Running now") < page.index("Built last")
    assert f"web/broken@{NEW}" in page[: page.index("Running now")]
    assert "ValueError: can&#39;t go on" in page


def test_the_table_of_artifacts_filters_sorts_pages_and_downloads(site):
    assert "9 artifacts" in site.get("/artifacts").text
    failed = site.get("/artifacts?state=failed").text
    assert "web/broken" in failed
    assert "web/source" not in failed
    names = [row["address"] for row in rows_of(site, "/artifacts?csv=artifacts&q=web/corpus&sort=address")]
    assert names == [f"web/corpus@{OLD}", f"web/corpus@{NEW}"]
    assert "No artifact fits" in site.get("/artifacts?q=nothing-like-it").text


def rows_of(site, path: str) -> list[dict[str, str]]:
    answer = site.get(path)
    assert answer.headers["content-type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.text)))


def test_an_artifact_says_result_origin_inputs_and_users(site):
    page = site.get(f"/artifact/{CORPUS}").text
    for part in ("built", "40", f"web/source@{NEW}", REPORT, BROKEN, "Made from", "Used by", "reproduce"):
        assert part in page


def test_a_failed_artifact_says_why_with_its_traceback(site):
    page = site.get(f"/artifact/{BROKEN}").text
    assert "Why it failed" in page
    assert "raise ValueError" in page
    assert "web_steps.py" in page


def test_a_changed_setting_stands_on_top_of_the_config_and_in_the_diff(site):
    config = site.get(f"/artifact/{CORPUS}?tab=config").text
    assert f'Changed since <a href="../../artifact/web/corpus@{OLD}">{OLD}</a>' in config
    assert "<td>0.5</td><td>0.25</td>" in config
    assert "<td>0.5</td><td>0.25</td>" in site.get(f"/diff?old=web/corpus@{OLD}&new={CORPUS}").text
    assert "do not differ" in site.get(f"/diff?old={CORPUS}&new={CORPUS}").text


def test_a_missing_input_stands_in_the_lineage_and_on_the_page_of_its_user(site):
    gone, user = f"web/source@{OLD}", f"web/corpus@{OLD}"
    page = site.get(f"/lineage/{user}?show={gone}").text
    assert 'class="node missing shown"' in page
    assert 'class="state missing"' in page[page.index("<aside") :]
    assert 'class="state missing"' in site.get(f"/artifact/{user}").text


def test_rows_of_a_file_are_paged(site):
    path = f"/artifact/web/source@{NEW}?tab=files&file=rows.jsonl"
    assert "row 19 " in site.get(path).text
    second = site.get(f"{path}&offset=20").text
    assert "row 20 " in second
    assert "row 19 " not in second


def test_topics_by_quality_are_one_link_from_their_corpus(site):
    link = f'<a href="../../corpus/web/buckets@{NEW}">web/buckets@{NEW}</a>'
    assert link in site.get(f"/corpus/{CORPUS}").text
    page = site.get(f"/corpus/web/buckets@{NEW}").text
    assert "harbour, &lt;script&gt;" in page
    assert 'title="scores 0.400 to 1.000, 900 B">9</td>' in page
    (row,) = rows_of(site, f"/corpus/web/buckets@{NEW}?csv=topics")
    assert row["documents"] == "40"
    assert f'href="../../corpus/web/buckets@{NEW}"' in site.get(f"/artifact/web/buckets@{NEW}").text


def test_a_corpus_shows_what_was_dropped_and_why(site):
    page = site.get(f"/corpus/{CORPUS}").text
    assert "exact duplicate" in page
    assert page.count("<article") == 8
    assert rows_of(site, f"/corpus/{CORPUS}?csv=reasons") == [
        {"stage": "exact", "reason": "exact duplicate", "documents": "6"}
    ]
    first, again, other = (site.get(f"/corpus/{CORPUS}?seed={seed}").text for seed in (0, 0, 1))
    assert first == again
    assert first.split("<article")[5:] != other.split("<article")[5:]


def test_sql_shows_rows_and_refusals_and_downloads_both_forms(site):
    query = "SELECT state, count(*) AS n FROM artifacts GROUP BY state ORDER BY n"
    page = site.get(f"/sql?sql={query}").text
    assert "2 rows" in page
    assert rows_of(site, f"/sql?sql={query}&download=csv") == [
        {"state": "failed", "n": "2"},
        {"state": "built", "n": "7"},
    ]
    assert site.get(f"/sql?sql={query}&download=parquet").content[:4] == b"PAR1"
    assert 'role="alert"' in site.get("/sql?sql=DROP TABLE artifacts").text
    assert query in site.get("/sql").text.replace("&#39;", "'"), "the log names what was asked"


def test_a_long_query_runs_on_and_its_page_finds_the_result_by_its_id(site):
    slow = "SELECT count(*) FROM range(30000) a, range(30000) b WHERE a.range * b.range %25 7 = 3"
    page = site.get(f"/sql?sql={slow}&timeout=10").text
    assert "running" in page
    assert 'http-equiv="refresh" content="1;url=?sql=' in page


def test_a_link_on_a_foreign_page_does_not_run_sql(site):
    page = site.get("/sql?sql=SELECT 41 %2B 1 AS n", **{"sec-fetch-site": "cross-site"}).text
    assert "SELECT 41 + 1 AS n" in page
    assert 'id="result"' not in page


def test_a_report_is_shown_apart_and_its_links_lead_to_pages(site):
    first = site.get(f"/report/{REPORT}")
    assert first.headers["location"] == f"report/{NEW}/report.html"
    place = urljoin(f"/report/{REPORT}", first.headers["location"])
    page = site.get(place)
    assert "What the corpus says" in page.text
    assert page.headers["content-security-policy"].startswith("sandbox")
    link = Links(page.text).found[-1]
    there = site.get(urlsplit(urljoin(f"http://h{place}", link)).path)
    assert urljoin(f"/report/web/corpus/{NEW}/", there.headers["location"]) == f"/artifact/{CORPUS}"
    assert site.get(f"/report/{CORPUS}").status_code == 404


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/nothing", 404),
        ("/artifact/web/corpus", 404),
        ("/artifact/web/corpus@v1", 404),
        ("/artifact/%2e%2e/%2e%2e/etc@dev", 404),
        ("/artifact/web/none@2026.01.01", 404),
        ("/report/web/corpus/2026.12.02/..%2fstages.html", 404),
        (f"/artifact/{CORPUS}?tab=files&path=../..", 404),
        (f"/artifact/{CORPUS}?tab=files&file=../../x", 404),
        (f"/artifact/{CORPUS}?tab=files&offset=-1&path=train", 200),
        ("/artifacts?page=x&sort=", 200),
        ("/artifacts?sort=password", 400),
        (f"/lineage/{CORPUS}?up=99999999999999&down=-3", 200),
        ("/egress?hours=abc", 200),
        ("//evil.example/%2f..", 404),
    ],
)
def test_what_cannot_be_is_refused_on_a_page_that_says_why(site, path, code):
    answer = site.get(path)
    assert answer.status_code == code, answer.text
    assert "location" not in answer.headers
    assert code == 200 or 'class="answer"' in answer.text


def test_links_of_an_address_with_escaped_slashes_do_not_climb_too_far(site):
    page = site.get(f"/artifact/web%2Fcorpus@{NEW}").text
    assert f'href="../artifact/web/source@{NEW}"' in page


def test_a_name_that_is_not_ours_is_refused(site):
    answer = site.get("/", host="evil.example:80")
    assert answer.status_code == 421
    assert "--allow-host evil.example" in answer.text
    assert site.get("/", host="localhost").status_code == 200


@pytest.mark.slow
def test_empty_places_say_how_to_fill_them(tmp_path, serve):
    with serve(tmp_path / "empty") as site:
        assert "lmlab run experiments/quickstart.py" in site.settled("/").text
        assert "lmlab run EXP.py" in site.get("/artifacts").text
        while "being counted" in (corpora := site.get("/corpora").text):
            time.sleep(0.05)
        assert "curate(" in corpora
        assert "Nobody read from another region" in site.get("/egress").text
