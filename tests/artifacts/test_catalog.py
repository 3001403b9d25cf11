"""The index of a root: it says what the records say, on every store, and is only a cache."""

import subprocess
import sys
import time

import pytest
from sample_steps import divide, number, total
from stored_artifacts import VERSION, claim, store

from lmlab.artifacts.catalog import FOLDER, INDEX, Catalog
from lmlab.artifacts.identity import user
from lmlab.artifacts.runner import execute
from lmlab.core.errors import ArtifactError
from lmlab.storage import Path
from services.places import declare_root

V = "2026.12.01"


def test_built_failed_and_running_artifacts_have_rows_on_every_store(any_root, planned):
    plan = planned(total("sum", [number("n/0", 1), number("n/1", 2)]), divide("broken", 0), where=any_root)
    execute(plan, any_root)
    claim(any_root, "busy", {"of": f"n/0@{V}/part", "note": "a@b"})
    rows = Catalog(any_root).refresh().rows
    assert {address: row.state for address, row in rows.items()} == {
        f"broken@{V}": "failed",
        f"busy@{V}": "running",
        f"n/0@{V}": "built",
        f"n/1@{V}": "built",
        f"sum@{V}": "built",
    }
    whole, failed, busy = rows[f"sum@{V}"], rows[f"broken@{V}"], rows[f"busy@{V}"]
    assert (whole.step, whole.result_type, whole.files) == ("total", "Number", 1)
    assert whole.inputs == (f"n/0@{V}", f"n/1@{V}")
    assert whole.result == '{"type":"Number","value":3}'
    assert "ZeroDivisionError" in str(failed.error)
    assert (failed.step, failed.attempt) == ("divide", 1)
    assert (busy.owner, busy.host, busy.inputs) == ("process 1 on elsewhere", "elsewhere", (f"n/0@{V}",))


def test_a_refresh_reads_only_records_that_are_new(tmp_path, monkeypatch, s3_endpoint, fault_proxy):
    faults = fault_proxy(s3_endpoint)
    root = declare_root("s3", faults.address, tmp_path, monkeypatch)
    for i in range(3):
        store(root, f"n/{i}")
    Catalog(root).refresh()
    store(root, "n/3")
    faults.set()
    assert len(Catalog(root).refresh().rows) == 4
    read = [path for method, path in faults.seen() if method == "GET" and path.endswith(".artifact.json")]
    assert [path.split("/")[-3] for path in read] == ["3"]


def test_a_bucket_is_asked_again_only_for_what_may_have_changed(
    tmp_path, monkeypatch, s3_endpoint, fault_proxy
):
    faults = fault_proxy(s3_endpoint)
    root = declare_root("s3", faults.address, tmp_path, monkeypatch)
    fixed, mutable = [store(root, f"n/{i}") for i in range(5)], store(root, "m@dev", epoch="1")
    catalog = Catalog(root, whole_s=0.5)
    first = catalog.refresh()
    store(root, "m@dev", epoch="2")
    new = store(root, "n/new")
    faults.set()
    second = catalog.refresh()
    assert second.rows[mutable] != first.rows[mutable]
    assert set(second.rows) == {*fixed, mutable, new}
    listed = [path for _, path in faults.seen() if "list-type" in path]
    assert not [path for path in listed if "n%2F3%2F2026.12.01" in path]
    assert [path for path in listed if "n%2Fnew%2F2026.12.01" in path]
    (root / "n/3" / V).remove_tree()
    assert fixed[3] not in catalog.refresh().rows
    (root / "n/4" / V / ".artifact.json").remove()
    (root / "n/4" / V / "left").write_bytes(b"1")
    assert fixed[4] in catalog.refresh().rows
    time.sleep(0.6)
    assert fixed[4] not in catalog.refresh().rows, "sooner or later everything is looked at"


def test_the_index_is_rebuilt_when_it_is_damaged_and_kept_when_nothing_changed(root):
    store(root, "n")
    index = root / FOLDER / INDEX
    Catalog(root).refresh()
    whole = index.read_bytes()
    for damage in (b"", b"\x93", whole[: len(whole) // 2], b"\x92\x91\xa4name\x90"):
        index.write_bytes(damage)
        assert list(Catalog(root).refresh().rows) == [f"n@{V}"]
        assert index.read_bytes() == whole
    before = index.stat()
    Catalog(root).refresh()
    assert index.stat() == before


def test_a_rebuilt_and_a_removed_artifact_are_noticed(root):
    store(root, "n@dev", epoch="1")
    used = store(root, "user", inputs=["n@dev"])
    catalog = Catalog(root)
    first = catalog.refresh().generation
    assert catalog.refresh().generation == first
    store(root, "n@dev", epoch="2")
    second = catalog.refresh().generation
    assert second != first
    (root / "n").remove_tree()
    third = catalog.refresh()
    assert third.generation not in (first, second)
    node = third.lineage(used)["nodes"][1]
    assert node == {
        "address": "n@dev",
        "state": "missing",
        "missing": True,
        "step": None,
        "result_type": None,
        "finished": None,
    }


def test_lineage_goes_both_ways_to_any_depth_and_through_cycles(root):
    a, b = store(root, "a"), store(root, "b", inputs=[f"a@{V}"])
    c, d = store(root, "c", inputs=[b], after=[a]), store(root, "d", inputs=[f"c@{V}", f"e@{V}"])
    e = store(root, "e", inputs=[d])
    found = Catalog(root).refresh()
    assert found.up(c) == [a, b]
    assert found.up(d, 1) == [c, e]
    assert found.down(a) == [b, c, d, e]
    assert found.down(a, 0) == []
    assert found.up(e) == [d, c, a, b]
    near = found.lineage(b, up=1, down=1)
    assert [node["address"] for node in near["nodes"]] == [b, a, c]
    assert {(edge["source"], edge["target"], edge["kind"]) for edge in near["edges"]} == {
        (a, b, "input"),
        (b, c, "input"),
        (a, c, "after"),
    }


def test_a_claim_whose_beat_stands_still_is_dead(root):
    beat = claim(root, "long")
    catalog = Catalog(root, stale_s=0.05)
    assert catalog.refresh().rows[f"long@{V}"].state == "running"
    time.sleep(0.06)
    beat.write_bytes(b'{"counter":2}')
    assert catalog.refresh().rows[f"long@{V}"].state == "running"
    time.sleep(0.06)
    row = catalog.refresh().rows[f"long@{V}"]
    assert row.state == "dead"
    assert "no sign of life for" in str(row.error)


def test_a_name_is_its_newest_version_and_an_unknown_one_is_one_line(root):
    store(root, "n@2026.11.01")
    store(root, f"n@{VERSION}")
    mine = store(root, f"users/{user()}/n@dev")
    found = Catalog(root).refresh()
    assert found.row("n@dev").address == found.row(mine).address == mine
    assert found.row("n").version == VERSION
    assert found.row("n@2026.11.01").version == "2026.11.01"
    for unknown in ("m", "n@2026.10.01", ""):
        with pytest.raises(ArtifactError, match="There is no artifact"):
            found.row(unknown)


def test_a_damaged_record_is_a_row_that_says_so(root):
    store(root, "n")
    (root / "n" / V / ".artifact.json").write_bytes(b"{")
    row = Catalog(root).refresh().rows[f"n@{V}"]
    assert row.state == "corrupt"
    assert "is corrupt" in str(row.error)


def test_data_scratch_and_dot_folders_are_not_looked_into(root):
    store(root, "n", {"deep/er/.artifact.json": b"{}"})
    store(root, "tmp/ttl=1d/scratch")
    store(root, ".state/hidden")
    assert list(Catalog(root).refresh().rows) == [f"n@{V}"]
    assert Catalog(Path("memory://an-empty-root")).refresh().rows == {}


def test_the_lineage_verb_reads_the_index_and_loads_no_tables(root):
    store(root, "b", inputs=[store(root, "a")])
    code = (
        "import sys; from lmlab.cli.main import main; "
        f"main(['lineage', 'b', '--json', '--root', {str(root)!r}]); print(' '.join(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert f'"up": [\n  "a@{V}"\n ]' in out
    assert {"duckdb", "pyarrow", "numpy"}.isdisjoint(out.split())


@pytest.mark.slow
def test_five_thousand_artifacts_stay_usable(root):
    for i in range(5000):
        store(root, f"n/{i // 50}/{i}", inputs=[f"n/{(i - 1) // 50}/{i - 1}@{V}"] if i else [])
    Catalog(root).refresh()
    started = time.process_time()
    catalog = Catalog(root)
    found = catalog.refresh()
    assert time.process_time() - started < 2
    started = time.process_time()
    assert len(found.up(f"n/99/4999@{V}")) == len(found.down(f"n/0/0@{V}")) == 4999
    assert time.process_time() - started < 0.1
