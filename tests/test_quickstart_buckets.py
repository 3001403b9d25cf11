"""The same experiment file on a bucket: same fingerprints, same corpus, tokens and losses as on a disk."""

import json

import pytest

from lmlab.artifacts import records
from lmlab.core import environ
from quickstart import VERSION, lmlab, record, run_small
from services.places import declare_root

SAME_BYTES = ("raw", "documents", "corpus", "tokenizers", "tokens", "models")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", ["s3", "gcs"])
def test_the_quick_start_on_a_bucket_gives_what_it_gives_on_a_disk(
    store, request, small_quickstart, tmp_path, monkeypatch
):
    root = declare_root(store, request.getfixturevalue(f"{store}_endpoint"), tmp_path, monkeypatch)
    cache = tmp_path / "cache"
    cache.mkdir()
    for compiled in ("numba", "xla"):
        (cache / compiled).symlink_to(environ.cache_dir() / compiled)
    monkeypatch.setenv("LMLAB_CACHE", str(cache))
    run_small(root)
    for name in [f"{kind}/quickstart" for kind in SAME_BYTES] + ["runs/grug", "evals/quickstart"]:
        there, here = records.load(root / name / VERSION), record(small_quickstart.root, name)
        assert there is not None
        assert (there.fingerprint, there.result_type) == (here["fingerprint"], here["result_type"])
        if name.partition("/")[0] in SAME_BYTES:
            assert there.files.tree_sha256 == here["files"]["tree_sha256"]
    assert losses((root / "runs/grug" / VERSION / "metrics.jsonl").read_text()) == losses(
        (small_quickstart.root / "runs/grug" / VERSION / "metrics.jsonl").read_text()
    )
    assert "nothing to do" in run_small(root, timeout=120).stdout
    lmlab("verify", "tokens/quickstart", root=root)
    assert str(tmp_path) not in (root / "runs/grug" / VERSION / ".artifact.json").read_text()


def losses(lines: str) -> list[float]:
    return [row["train/loss"] for row in map(json.loads, lines.splitlines()) if "train/loss" in row]
