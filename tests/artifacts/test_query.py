"""The query service as its clients see it: real processes, real HTTP, real stores."""

import gzip
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from odd_parquet import with_page_header
from query_client import TOKEN, Client, service
from stored_artifacts import VERSION, claim, corpus, parquet, store

from lmlab.artifacts import query_jobs, query_rules
from lmlab.artifacts.catalog import Catalog
from lmlab.artifacts.query_jobs import Ask
from lmlab.core.errors import ConfigError, HostError
from lmlab.storage import Path
from services.places import declare_root

DEMO = f"corpus/demo@{VERSION}"


def fill(root: Path) -> None:
    """A corpus, something made of it, files of every kind, something adopted, and a failure."""
    corpus(root, "corpus/demo")
    lines = b"".join(b'{"step":%d,"loss":%s}\n' % (i, b"1.5" if i else b"null") for i in range(100))
    files = {
        "table.parquet": parquet(x=[1.0, math.nan, math.inf], n=[1, 2, 3], deep=[[1], [2], []]),
        "metrics.jsonl": lines,
        "metrics.jsonl.gz": gzip.compress(lines),
        "metrics.jsonl.zst": zstandard.compress(lines),
        "notes.md": "ä line\n".encode() * 100,
        "small.csv": b"a,b\n1,x\n2,y\n",
        "config.json": b'{"b":1,"a":[1,2]}',
        "weights.bin": b"\x00\x01",
        "damaged.jsonl.gz": gzip.compress(lines)[:50],
        "odd.jsonl": b"{}\nnot",
    }
    store(root, "runs/one", files, inputs=[DEMO], result={"loss": 1.5}, kind="Run")
    store(root, "runs/one@2026.11.01", {"notes.md": b"old"}, result={"loss": 2.5}, kind="Run")
    store(root, "raw/given", source="/etc")
    folder = root / "runs/bad" / VERSION
    (folder / ".claims" / "00000001.log").write_bytes(b"first\nsecond\n")
    claim(root, "runs/bad", {"docs": DEMO}, state="failed", error="ValueError: no", traceback="at line 3")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A service that no test stops, over a root that no test changes."""
    root = Path(tmp_path_factory.mktemp("demo"))
    fill(root)
    with service(root) as client:
        yield client


def test_a_select_is_answered_with_types_and_rows(demo):
    found = demo.sql("SELECT state, count(*) AS n FROM artifacts GROUP BY state ORDER BY n DESC, state")
    assert found["state"] == "done"
    assert found["columns"] == [{"name": "state", "type": "VARCHAR"}, {"name": "n", "type": "BIGINT"}]
    assert found["rows"] == [["built", 3], ["adopted", 1], ["failed", 1]]
    assert found["row_count"] == 3
    assert demo.rows(f"SELECT source, target FROM edges WHERE kind = 'input' AND source = '{DEMO}'") == [
        [DEMO, f"runs/bad@{VERSION}"],
        [DEMO, f"runs/one@{VERSION}"],
    ]


def test_files_are_read_by_the_address_of_their_artifact(demo):
    assert demo.rows("SELECT count(*), min(id) FROM '{{corpus/demo}}/train/*.parquet'") == [[40, "0" * 32]]
    by_list = "FROM read_parquet(['{{%s}}/train/part-00000-of-00002.parquet'], union_by_name => true)"
    assert demo.rows(f"SELECT count(*) {by_list % DEMO}") == [[20]]
    assert demo.rows("SELECT max(step) FROM read_json('{{runs/one}}/metrics.jsonl.gz')") == [[99]]
    assert demo.ask("FROM '{{corpus/none}}/x.parquet'", 404)["error"].startswith("There is no artifact")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1;",
        "SELECT 1 -- comment",
        "SELECT 1; -- comment; with a semicolon",
        "/* first */ SELECT 1 ;; ",
        "WITH x AS (SELECT 1 AS a) FROM x",
        "VALUES (1)",
    ],
)
def test_what_surrounds_a_statement_does_not_matter(demo, sql):
    assert demo.rows(sql) == [[1]]


def test_values_that_json_lacks_arrive_as_text(demo):
    found = demo.rows("SELECT x, n, deep FROM '{{runs/one}}/table.parquet' ORDER BY n")
    assert found == [[1.0, 1, "[1]"], ["nan", 2, "[2]"], ["inf", 3, "[]"]]
    odd = "SELECT sum(n), 1.25, DATE '2026-01-02', INTERVAL 3 DAY, {'a': NULL}, -'inf'::DOUBLE, NULL, 'é', "
    odd += (
        "TIMESTAMPTZ '2026-01-02 03:04:05+00', '\\x01'::BLOB, 1 AS a, 2 AS a, [sum(n)] FROM range(5) AS t(n)"
    )
    found = demo.sql(odd)
    assert found["rows"][0][:7] == [10, 1.25, "2026-01-02", "3 days", '{"a":null}', "-inf", None]
    assert found["rows"][0][7:] == ["é", "2026-01-02 03:04:05+00", "\\x01", 1, 2, "[10.0]"]
    assert [column["name"] for column in found["columns"]][-3:-1] == ["a", "a_2"]


def test_a_large_result_is_kept_whole_and_shown_in_pages(demo):
    found = demo.sql("SELECT i FROM range(25000) AS t(i) ORDER BY i DESC")
    assert (found["row_count"], len(found["rows"]), found["rows"][0]) == (25_000, 10_000, [24_999])
    page = demo.wait(found["id"], offset=24_990, count=100)["rows"]
    assert page == [[i] for i in range(9, -1, -1)]
    text = demo.http.get(f"result/{found['id']}.csv").text.splitlines()
    assert (len(text), text[:2]) == (25_001, ["i", "24999"])
    data = demo.http.get(f"result/{found['id']}.parquet").content
    assert pq.read_table(pa.BufferReader(data)).num_rows == 25_000
    assert demo.sql("SELECT 1 WHERE false")["rows"] == []
    wide = demo.rows("SELECT repeat('x', 100000000) AS x")
    assert len(wide[0][0]) == 32_768, "a page shows the beginning; the file holds all"


REFUSED = {
    "FROM '/etc/passwd.csv'": "outside what queries may read",
    "FROM read_text('/etc/passwd')": "outside what queries may read",
    "SELECT (SELECT content FROM read_text('/etc/passwd'))": "outside what queries may read",
    "FROM glob('/etc/*')": "outside what queries may read",
    "FROM 'x.parquet'": "outside what queries may read",
    "FROM 'http://127.0.0.1:1/x.csv'": "outside what queries may read",
    "FROM 's3://other/x.parquet'": "outside what queries may read",
    "DESCRIBE 's3://other/x.parquet'": "outside what queries may read",
    "FROM '{{corpus/demo}}/../../../x.parquet'": "contains '..'",
    'FROM "{{corpus/demo}}/."."/x.parquet"': "contains '..'",
    "FROM read_parquet('{{corpus/demo}}/' || chr(46) || './x')": "plain text",
    "FROM '{{corpus/demo}}/*.parquet' AS t, read_text(t.text)": "plain text",
    "FROM read_text('{{corpus/demo}}/.artifact.json')": "lmlab's own files",
    "FROM read_text('ROOT/.state/queries.jsonl')": "outside what queries may read",
    "FROM '{{raw/given}}/passwd.csv'": "is adopted data at /etc",
    "FROM query('SELECT 1')": "may not call query()",
    "FROM json_execute_serialized_sql('{}')": "may not call json_execute_serialized_sql()",
    "FROM duckdb_secrets()": "may not call duckdb_secrets()",
    "FROM pragma_database_list()": "may not call",
    "FROM enable_logging()": "may not call",
    "COPY (SELECT 1) TO '/tmp/x.csv'": "not exactly one SELECT",
    "ATTACH '/tmp/x.db'": "not exactly one SELECT",
    "INSTALL json": "not exactly one SELECT",
    "LOAD httpfs": "not exactly one SELECT",
    "CREATE SECRET (TYPE s3)": "not exactly one SELECT",
    "CREATE TABLE t AS SELECT 1": "not exactly one SELECT",
    "SET threads = 64": "not exactly one SELECT",
    "CALL pragma_version()": "not exactly one SELECT",
    "PRAGMA database_list": "not exactly one SELECT",
    "EXPLAIN SELECT 1": "not exactly one SELECT",
    "EXPLAIN ANALYZE DELETE FROM artifacts": "not exactly one SELECT",
    "SELECT 1; SELECT 2": "not exactly one SELECT",
    "": "not exactly one SELECT",
    "SELEC 1": "can't be parsed",
    "SELECT 'a'" + " " * 100_000: "characters",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_no_read_of_this_roots_data_is_refused_with_one_line(demo, sql):
    error = demo.ask(sql, 400)["error"]
    assert REFUSED[sql] in error
    assert "\n" not in error


def test_a_function_that_reads_the_environment_does_not_exist(demo):
    assert "getenv does not exist" in demo.sql("SELECT getenv('LMLAB_QUERY_TOKEN')")["error"]


def test_the_engine_itself_is_locked_to_the_folders(tmp_path):
    """The second guard: a query that our checks would have let through by mistake."""
    from lmlab.artifacts import query_engine

    (tmp_path / "secret.csv").write_text("a\n1\n")
    folder = str(tmp_path / "allowed")
    for sql in (f"FROM '{tmp_path}/secret.csv'", "FROM glob('/etc/*')", "FROM 'http://127.0.0.1:1/x.csv'"):
        query = query_rules.Query(sql, str(tmp_path), (folder,), (), frozenset())
        with pytest.raises(ConfigError, match="disabled by configuration"):
            query_engine.run(query, {}, Path(tmp_path), tmp_path / "out.parquet", timeout_s=5, share=0.1)


def test_an_explanation_is_a_parameter_and_runs_nothing(demo):
    found = demo.sql("SELECT sum(i) FROM range(100000000000) AS t(i)", explain=True, timeout_s=5)
    assert found["state"] == "done"
    assert "RANGE" in json.dumps(found["rows"])


def test_a_query_without_end_is_cancelled_and_the_others_go_on(demo):
    endless = "SELECT count(*) FROM range(100000000000) AS t(i) WHERE i % 7 = 3"
    slow = [demo.ask(f"{endless} AND {i} = {i}", timeout_s=1.5)["id"] for i in range(3)]
    quick = demo.sql("SELECT 40 + 2")
    assert quick["rows"] == [[42]]
    for found in map(demo.wait, slow):
        assert found["state"] == "failed"
        assert "Cancelled after 1.5 s" in found["error"]
        assert quick["finished"] < found["finished"]


def test_an_error_of_the_sql_is_one_line(demo):
    found = demo.sql("SELECT nme FROM artifacts")
    assert found["state"] == "failed"
    assert 'column "nme" not found' in found["error"]
    assert "\n" not in found["error"]
    assert demo.get(f"result/{found['id']}.csv", 400)["error"].endswith("it is failed.")


def test_wrong_requests_are_told_what_is_wrong(demo):
    assert demo.http.post("query", content=b"{}").status_code == 400
    assert "sql" in demo.http.post("query", content=b'{"use_cache":true}').json()["error"]
    assert demo.http.post("query", content=b"no json").status_code == 400
    assert "timeout_s" in demo.ask("SELECT 1", 400, timeout_s=1e9)["error"]
    assert demo.get("result/unknown", 404)["error"].startswith("There is no query unknown")
    assert demo.get("result/..%2Fx", 404)
    assert demo.get("artifacts", 400, sort="nope")["error"].startswith("sort='nope' is no column")
    for number in ("x", "-1", "²", "9" * 19):
        assert "is no whole number" in demo.get("artifacts", 400, page=number)["error"]
    assert demo.http.get("artifacts/").status_code == 404


def test_a_missing_credential_is_named(demo):
    for headers, what in (({}, "is missing"), ({"authorization": "Bearer x"}, "is not this service's")):
        answer = httpx.get(f"{demo.http.base_url}/artifacts", headers=headers, trust_env=False)
        assert answer.status_code == 401
        assert what in answer.json()["error"]
        assert "LMLAB_QUERY_TOKEN" in answer.json()["error"]
    assert httpx.get(f"{demo.http.base_url}/health", trust_env=False).json() == {"status": "ok"}


def test_the_service_does_not_start_without_a_token(root):
    done = subprocess.run(
        [sys.executable, "-m", "lmlab.artifacts.query", "--root", str(root)],
        env={key: value for key, value in os.environ.items() if key != "LMLAB_QUERY_TOKEN"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.startswith("ConfigError: LMLAB_QUERY_TOKEN is not set")


# -- the cache and the log --------------------------------------------------------------------------


def test_an_answer_survives_a_kill_and_changes_with_the_catalog(root):
    fill(root)
    sql = "SELECT count(*), random() FROM artifacts"
    with service(root) as client:
        first = client.sql(sql)
        again = client.sql(sql)
        fresh = client.sql(sql, use_cache=False)
        assert (first["cached"], again["cached"], fresh["cached"]) == (False, True, False)
        assert again["rows"] == first["rows"] != fresh["rows"]
        client.kill()
    with service(root) as client:
        assert client.get(f"result/{first['id']}")["rows"] == first["rows"]
        kept = client.sql(sql)
        assert kept["cached"]
        assert kept["rows"] == first["rows"]
        (root / "tmp").remove_tree()
        assert not client.sql(sql)["cached"]
        store(root, "runs/new")
        time.sleep(2.1)
        changed = client.sql(sql)
        assert not changed["cached"]
        assert changed["rows"][0][0] == first["rows"][0][0] + 1


def test_the_log_is_a_table_and_outlives_the_service(root):
    fill(root)
    count = "SELECT count(*) FROM queries"
    with service(root) as client:
        client.sql("SELECT 1", user="ada")
        client.sql("SELECT 1", user="ada")
        client.sql("SELECT nothing")
        assert client.rows(count) == [[3]]
        assert client.rows(count) == [[4]], "an answer about the log is never taken from a file"
        client.kill()
    with service(root) as client:
        rows = client.rows('SELECT "user", sql, rows, cached, error FROM queries ORDER BY time LIMIT 3')
        assert rows[:2] == [["ada", "SELECT 1", 1, False, ""], ["ada", "SELECT 1", 1, True, ""]]
        assert "not found" in rows[2][4]
        assert client.get("queries")["rows"][-1]["sql"] == "SELECT 1"


def test_files_that_are_being_written_are_read_anew(root):
    place = claim(root, "runs/live").parent.parent / "metrics.csv"
    place.write_bytes(b"step\n1\n")
    with service(root) as client:
        sql = "SELECT count(*) FROM '{{runs/live}}/metrics.csv'"
        assert client.rows(sql) == [[1]]
        place.write_bytes(b"step\n1\n2\n")
        assert client.rows(sql) == [[2]]


def test_the_same_question_twice_at_once_is_one_query(demo):
    sql = "SELECT sum(i * i) FROM range(30000000) AS t(i)"
    with ThreadPoolExecutor(4) as pool:
        identifiers = {answer["id"] for answer in pool.map(demo.ask, [sql] * 4)}
    assert len(identifiers) == 1
    assert demo.wait(identifiers.pop())["state"] == "done"


def test_more_queries_than_may_wait_are_refused(root):
    store(root, "n")
    queries = query_jobs.Queries(Catalog(root), concurrent=1, waiting=1)
    endless = "SELECT count(*) FROM range(100000000000) AS t(i) WHERE i % 7 = {}"
    first = queries.submit(Ask(endless.format(1), timeout_s=0.3))
    queries.submit(Ask(endless.format(2), timeout_s=0.1))
    assert queries.submit(Ask(endless.format(1))).id == first.id, "the same question is the same query"
    with pytest.raises(HostError, match="2 queries run or wait"):
        queries.submit(Ask("SELECT 1"))
    queries.close(wait=True)
    ended = queries.get(first.id)
    assert ended is not None
    assert "Cancelled after 0.3 s" in str(ended.error)


def test_answers_not_used_for_longest_are_let_go(root, monkeypatch):
    monkeypatch.setattr(query_jobs, "FILES", 3)
    monkeypatch.setattr(query_jobs, "STATES", 4)
    store(root, "n")
    catalog = Catalog(root)

    def answer(*numbers: int) -> list[bool]:
        queries = query_jobs.Queries(catalog, concurrent=1)
        jobs = [queries.submit(Ask(f"SELECT {number}")) for number in numbers]
        queries.close(wait=True)
        return [job.cached for job in jobs]

    assert answer(1, 2, 3) == [False] * 3
    assert answer(2) == [True]
    assert answer(4, 5) == [False] * 2
    files = {path.name.rpartition(".")[2] for path in (root / "tmp/ttl=7d/queries").list()}
    assert files == {"json", "parquet"}
    assert len((root / "tmp/ttl=7d/queries").list()) == 6
    assert answer(4, 5) == [True] * 2


def test_it_works_behind_a_prefix(demo):
    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            path = self.path.removeprefix("/proxy/x")
            answer = demo.http.request(self.command, path, content=body, headers=dict(self.headers))
            self.send_response(answer.status_code)
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/proxy/x/"
        with httpx.Client(base_url=url, headers=demo.http.headers, trust_env=False) as http:
            client = Client(http, demo.process)
            assert client.rows("SELECT 'behind'") == [["behind"]]
            assert client.get(f"lineage/{DEMO}")["nodes"]
            assert client.http.get("artifacts/").status_code == 404, "no redirect to another address"
        server.shutdown()


def test_the_service_ends_with_its_owner(root):
    code = (
        "import subprocess, sys; "
        "child = subprocess.Popen([sys.executable, '-m', 'lmlab.artifacts.query', '--root', sys.argv[1]], "
        "stdout=subprocess.PIPE, text=True); print(child.stdout.readline(), child.pid, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(root)],
        env={**os.environ, "LMLAB_QUERY_TOKEN": TOKEN},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline().startswith("http://")
        child = int(owner.stdout.readline())
        os.kill(owner.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{child}/stat"):  # noqa: PTH110 - a process, not a file
        assert time.monotonic() < deadline
        time.sleep(0.02)


# -- regions and stores -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ('region = "europe-west4"\n[roots]\nus-central1 = "{root}"', "lies in us-central1"),
        ('region = "europe-west4"', "lies in an unknown region"),
        ('region = "us"\n[roots]\nus-central1 = "{root}"', None),
        ("", None),
    ],
)
def test_a_read_from_another_region_needs_a_line_that_allows_it(root, tmp_path, monkeypatch, declared, told):
    corpus(root, "corpus/demo")
    (tmp_path / "lmlab.toml").write_text(f'root = "{root}"\n{declared.format(root=root)}\n')
    monkeypatch.setenv("LMLAB_CONFIG", str(tmp_path / "lmlab.toml"))
    sql = "SELECT count(*) FROM '{{corpus/demo}}/train/*.parquet'"
    with service(root) as client:
        if told is None:
            assert client.rows(sql) == [[40]]
        else:
            assert told in client.ask(sql, 400)["error"]
            assert client.rows(f"-- cross-region: allow\n{sql}") == [[40]]
        paid = client.rows("SELECT sum(bytes) > 0 FROM transfers")
        assert paid == [[True if told == "lies in us-central1" else None]]


def test_sql_and_pages_read_each_store(any_root):
    fill(any_root)
    with service(any_root) as client:
        assert client.rows("SELECT count(*) FROM '{{corpus/demo}}/train/*.parquet'") == [[40]]
        assert client.rows("SELECT x FROM '{{runs/one}}/table.parquet' WHERE n = 2") == [["nan"]]
        assert client.sql("SELECT count(*) FROM artifacts")["rows"] == [[5]]
        assert client.sql("SELECT count(*) FROM artifacts")["cached"]
        assert client.get("preview/runs/one", path="metrics.jsonl.zst", count=1)["rows"] == [[0, None]]
        assert client.get("preview/runs/one", path="table.parquet")["row_count"] == 3
        samples = client.get("corpus/corpus/demo/samples", stage="fuzzy")["rows"]
        assert sorted(row["id"] for row in samples) == [f"{i:032x}" for i in range(200, 203)]
        outside = str(any_root).rpartition("/")[0]
        assert "outside what" in client.ask(f"FROM '{outside}/x.parquet'", 400)["error"]
        assert "contains '..'" in client.ask("FROM '{{corpus/demo}}/../../x.parquet'", 400)["error"]


def test_no_answer_tells_the_key_of_a_store(tmp_path, monkeypatch, s3_endpoint):
    root = declare_root("s3", s3_endpoint, tmp_path, monkeypatch)
    (tmp_path / "key").write_text("a-key-nobody-may-see")
    corpus(root, "corpus/demo")
    with service(root) as client:
        assert client.rows("SELECT count(*) FROM '{{corpus/demo}}/train/*.parquet'") == [[40]]
        steered = "FROM '{{corpus/demo}}/train/part-00000-of-00002.parquet?s3_endpoint=127.0.0.1:1'"
        assert "says how a store is reached" in client.ask(steered, 400)["error"]
        for sql in ("SELECT current_setting('s3_secret_access_key')", "FROM '{{corpus/demo}}/no/*.parquet'"):
            assert "nobody-may-see" not in json.dumps(client.sql(sql))


# -- pages' views -----------------------------------------------------------------------------------


def test_the_table_of_artifacts_is_filtered_sorted_and_paged(demo):
    table = demo.get("artifacts", sort="address", size=2, page=2)
    assert (table["total"], table["page"], [row["address"] for row in table["rows"]]) == (
        5,
        2,
        [f"runs/bad@{VERSION}", "runs/one@2026.11.01"],
    )
    assert table["states"] == {"built": 3, "adopted": 1, "failed": 1}
    assert [row["name"] for row in demo.get("artifacts", state="failed,dead")["rows"]] == ["runs/bad"]
    assert demo.get("artifacts", q="RUNS one", state="failed")["states"] == {"built": 2}
    assert demo.get("artifacts")["rows"][0]["name"] == "runs/bad", "what is not finished comes first"
    assert demo.get("artifacts", page=99)["page"] == 1


def test_an_artifact_tells_its_record_or_why_there_is_none(demo):
    one = demo.get("artifact/runs/one")
    assert one["record"]["result"]["loss"] == 1.5
    assert [version["version"] for version in one["versions"]] == [VERSION, "2026.11.01"]
    assert one["inputs"] == [{"address": DEMO, "state": "built"}]
    bad = demo.get(f"artifact/runs/bad@{VERSION}")
    assert (bad["record"], bad["state"], bad["error"]) == (None, "failed", "ValueError: no")
    assert (bad["traceback"], bad["log"]) == ("at line 3", True)
    assert demo.get("log/runs/bad", offset=6)["text"] == "second\n"
    used = demo.get(f"artifact/{DEMO}")["used_by"]
    assert [other["address"] for other in used] == [f"runs/bad@{VERSION}", f"runs/one@{VERSION}"]
    assert demo.get("artifact/nope", 404)["error"].startswith("There is no artifact nope")
    changes = demo.get("diff", old="runs/one@2026.11.01", new="runs/one")["sections"]
    assert changes["result"] == [{"path": "loss", "old": 2.5, "new": 1.5}]


def test_files_are_listed_by_folder_and_shown_by_kind(demo):
    top = demo.get(f"files/{DEMO}")
    assert [folder["name"] for folder in top["folders"]] == ["rejected", "train"]
    assert top["folders"][1]["files"] == 2
    inner = demo.get(f"files/{DEMO}", path="rejected/fuzzy")["files"]
    assert inner[0]["kind"] == "table"
    for path in ("metrics.jsonl", "metrics.jsonl.gz", "metrics.jsonl.zst"):
        page = demo.get("preview/runs/one", path=path, offset=98, count=5)
        assert [column["name"] for column in page["columns"]] == ["step", "loss"]
        assert page["rows"] == [[98, 1.5], [99, 1.5]]
    assert demo.get("preview/runs/one", path="table.parquet", offset=1, count=1)["rows"] == [
        ["nan", 2, "[2]"]
    ]
    assert demo.get("preview/runs/one", path="small.csv")["rows"] == [[1, "x"], [2, "y"]]
    assert demo.get("preview/runs/one", path="config.json")["text"].startswith('{\n  "b": 1')
    assert demo.get("preview/runs/one", path="notes.md", offset=8)["text"].startswith("ä line")
    assert demo.get("preview/runs/one", path="weights.bin")["kind"] == "binary"
    assert "is damaged" in demo.get("preview/runs/one", 422, path="damaged.jsonl.gz")["error"]
    assert "line 2 is no JSON" in demo.get("preview/runs/one", 422, path="odd.jsonl")["error"]


@pytest.mark.parametrize(
    "path", ["", "../one/x", "..", ".artifact.json", "/etc/passwd", "nope.json", "train"]
)
def test_only_an_artifacts_own_files_are_shown(demo, path):
    assert "has no file" in demo.get("preview/runs/one", 404, path=path)["error"]
    assert "is adopted data" in demo.get("preview/raw/given", 404, path="passwd")["error"]


def test_a_page_header_that_pyarrow_refuses_is_read(root):
    data = with_page_header(17 << 20)
    with pytest.raises(OSError, match="Deserializing page header failed"):
        pq.read_table(pa.BufferReader(data))
    store(root, "docs/odd", {"part.parquet": data})
    with service(root) as client:
        assert client.rows("FROM '{{docs/odd}}/part.parquet'") == [[1], [2], [3]]
        assert client.get("preview/docs/odd", path="part.parquet")["rows"] == [[1], [2], [3]]


def test_a_corpus_shows_its_stages_and_samples_of_both_sides(demo):
    told = demo.get("corpus/corpus/demo")
    assert [stage["dropped"] for stage in told["stages"]] == [{"exact duplicate": 2}, {"near duplicate": 3}]
    assert told["rejected"] == ["exact", "fuzzy"]

    def draw(**asked: object) -> list[dict[str, object]]:
        return demo.get("corpus/corpus/demo/samples", **asked)["rows"]

    kept = draw(count=5, seed=1)
    assert len({row["id"] for row in kept}) == 5
    assert draw(count=5, seed=1) == kept
    assert draw(count=5, seed=2) != kept
    assert {row["domain"] for row in draw(domain="code", count=50)} == {"code"}
    assert len(draw(domain="code", count=50)) == 10
    assert [row["reason"] for row in draw(stage="exact", reason="exact", domain="code")] == [
        "exact duplicate: 100"
    ]
    assert draw(kept=0, reason="nothing") == draw(domain="' OR true --") == []
    assert demo.get("corpus/runs/one", 422)["error"].endswith("it has neither stages.json nor buckets.json.")


def test_the_leaderboard_is_computed_in_the_background(root):
    fill(root)
    store(root, "odd/text", {"stages.json": b"no json"})
    store(root, "odd/list", {"stages.json": b'{"domains":[1]}'})
    with service(root) as client:
        first = client.get("corpora")
        deadline = time.monotonic() + 10
        while (found := client.get("corpora"))["state"] != "ready":
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert first["state"] == "computing"
    shown = ("domain", "documents", "share", "rejected")
    assert [[row[name] for name in shown] for row in found["rows"]] == [
        ["prose", 30, 0.75, 3],
        ["code", 10, 0.25, 2],
    ]
    assert found["rows"][1]["rejected_share"] == 2 / 13


def test_examples_run_as_they_stand(demo):
    told = demo.get("tables")
    names = {table["name"]: [column["name"] for column in table["columns"]] for table in told["tables"]}
    assert names["edges"] == ["source", "target", "kind"]
    assert {"artifacts", "transfers", "queries"} <= names.keys()
    assert {"address", "state", "config", "bytes"} <= set(names["artifacts"])
    assert "mark" not in names["artifacts"]
    for example in told["examples"]:
        assert demo.sql(example["sql"])["error"] is None, example["title"]
    assert any("{{corpus/demo@" in example["sql"] for example in told["examples"])


def test_transfers_are_added_up_by_user(root):
    row = {
        "user": "ada",
        "run": "r",
        "src_region": "us",
        "dst_region": "eu",
        "path": "s3://x",
        "kind": "read",
    }
    now = time.time()
    rows = [{**row, "time": now - 60, "bytes": 11 << 30}, {**row, "time": now - 90_000, "bytes": 5}]
    rows.append({**row, "user": "bob", "time": now - 5, "bytes": 7})
    (root / ".transfers/r/1.json").write_bytes(json.dumps({"reserved": 0, "rows": rows}).encode())
    with service(root) as client:
        day = client.get("egress")
        assert [(user["user"], user["bytes"], user["transfers"]) for user in day["users"]] == [
            ("ada", 11 << 30, 1),
            ("bob", 7, 1),
        ]
        assert [user["user"] for user in day["offenders"]] == ["ada"]
        assert client.get("egress", hours=30)["total_bytes"] == (11 << 30) + 12
        assert client.rows("SELECT sum(bytes) FROM transfers WHERE \"user\" = 'ada'") == [[(11 << 30) + 5]]


def test_lineage_is_a_neighbourhood_that_grows(demo):
    near = demo.get("lineage/runs/one")
    assert [node["address"] for node in near["nodes"]] == [f"runs/one@{VERSION}", DEMO]
    wide = demo.get(f"lineage/{DEMO}", up=0, down=3)
    assert len(wide["edges"]) == 2


def test_the_command_answers_like_the_service(root):
    fill(root)

    def lmlab(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lmlab.cli.main", "query", *words, "--root", str(root)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    sql = "SELECT state, count(*) AS n FROM artifacts GROUP BY ALL ORDER BY n DESC, state"
    assert lmlab(sql).stdout.splitlines() == ["state    n", "built    3", "adopted  1", "failed   1"]
    assert json.loads(lmlab(sql, "--json").stdout)["rows"][0] == ["built", 3]
    assert lmlab(sql, "--csv").stdout.splitlines()[:2] == ["state,n", "built,3"]
    refused = lmlab("COPY (SELECT 1) TO 'x'")
    assert refused.returncode == 2
    assert refused.stderr.startswith("ConfigError: ")
    assert np.char.count(refused.stderr, "\n") == 1
    late = lmlab("SELECT count(*) FROM range(100000000000) t(i) WHERE i % 7 = 3", "--timeout", "0.2")
    assert late.stderr.startswith("ConfigError: Cancelled after 0.2 s")


def test_a_corpus_of_another_shape_does_not_hide_the_others(root):
    domain = (
        '{"domain": "a", "train_documents": 1, "train_bytes": 5, "holdout_documents": 0, "holdout_bytes": 0}'
    )
    store(root, "corpus/good", {"stages.json": f'{{"domains": [{domain}]}}'.encode()})
    for name, odd in {"list": b"[]", "text": b"no JSON", "domains": b'{"domains": [3]}'}.items():
        store(root, f"corpus/{name}", {"stages.json": odd})
    with service(root) as client:
        for _ in range(100):
            told = client.get("corpora")
            if told["state"] == "ready":
                break
            time.sleep(0.05)
        assert [row["address"].partition("@")[0] for row in told["rows"]] == ["corpus/good"]
