"""The summaries of an evaluation, against numbers worked out by hand."""

import math

import numpy as np
import pyarrow.parquet as pq
import pytest

from lmlab.evals.heldout import HeldOut
from lmlab.evals.table import Column, micro_bpb, scores, top_documents, write_scores
from lmlab.storage import Path

BIT = math.log(2)
HELD_OUT = HeldOut(
    domains=("code", "prose"),
    ids=["a", "b", "c", "d"],
    domain=np.array([0, 0, 1, 1]),
    size_bytes=np.array([100, 300, 1000, 200]),
    tokens=np.array([30, 90, 250, 50]),
    excerpts=["A", "B", "C", "D"],
    compressed=np.array([50, 100, 400, 90]),
)


def column(name: str, bits: list[float]) -> Column:
    return Column(name, "model", "by hand", np.array(bits) * BIT, {"params": 7})


MAIN, OTHER = column("grug", [100, 700, 1200, 600]), column("dense", [400, 400, 2400, 0])


def test_bits_per_byte_by_domain_macro_and_micro() -> None:
    found = scores(HELD_OUT, [MAIN, OTHER])
    assert found["main"] == "grug"
    code, prose = found["domains"]
    assert code | {"bpb": None} == {
        "domain": "code",
        "documents": 2,
        "bytes": 400,
        "tokens": 120,
        "bpb": None,
    }
    assert code["bpb"] == pytest.approx({"grug": 2.0, "dense": 2.0})
    assert prose["bpb"] == pytest.approx({"grug": 1.5, "dense": 2.0})
    assert found["macro"] == pytest.approx({"grug": 1.75, "dense": 2.0})
    assert found["micro"] == pytest.approx({"grug": 2600 / 1600, "dense": 2.0})
    assert found["columns"][0] == {"name": "grug", "kind": "model", "how": "by hand", "params": 7}


def test_hardest_and_easiest_documents_are_long_enough_to_say_something() -> None:
    found = top_documents(HELD_OUT, [MAIN, OTHER])
    assert [row["id"] for row in found["hardest"]] == ["d", "b", "c"]
    assert [row["id"] for row in found["easiest"]] == ["c", "b", "d"]
    hardest = found["hardest"][0]
    assert (hardest["domain"], hardest["excerpt"], hardest["bytes"]) == ("prose", "D", 200)
    assert hardest["bpb"] == pytest.approx({"grug": 3.0, "dense": 0.0})


def test_the_files_hold_every_document(tmp_path) -> None:
    write_scores(Path(tmp_path), HELD_OUT, [MAIN, OTHER])
    table = pq.read_table(tmp_path / "documents.parquet")
    assert table.column_names == ["id", "domain", "bytes", "tokens", "nats/grug", "nats/dense"]
    assert table["domain"].to_pylist() == ["code", "code", "prose", "prose"]
    total = sum(table["nats/grug"].to_pylist()) / BIT / sum(table["bytes"].to_pylist())
    assert total == pytest.approx(micro_bpb(HELD_OUT, MAIN))
