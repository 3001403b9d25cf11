"""Renderers on real data: trajectories, conversations, questions and logs that others published."""

from pathlib import Path as LocalPath

import pytest

from lmlab.corpus import Slice
from lmlab.corpus.reading import read, render
from lmlab.storage import Path

SHARED = LocalPath(__file__).parents[3] / "shared" / "data"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=f"needs the data staged in {SHARED}")


def documents(pattern: str, renderer: str):
    piece = (Slice("d", ("*",), renderer),)
    paths = sorted(SHARED.glob(pattern))
    return [found for path in paths for record in read(Path(path), piece) for found in render(record)]


# pattern, renderer, documents, those that are solved (None: nobody says), a line that must be there
REAL = [
    ("tau_bench/gpt-4o-airline.json", "chat", 200, 84, "Could you please provide your user ID?"),
    ("tau_bench/*few_shot.jsonl", "chat", 88, None, "tool: Transfer successful"),
    ("chat_sample/*.json", "chat", 500, None, "Who are you?"),
    ("swe_agent/*.traj", "swe_agent", 13, None, "edit 1:1"),
    ("gsm8k/*.jsonl", "instruction", 8792, None, "Natalia sold 48/2 = <<48/2=24>>24 clips in May."),
    (
        "mbpp/*.jsonl",
        "instruction",
        974,
        None,
        "assert min_cost([[1, 2, 3], [4, 8, 2], [1, 5, 3]], 2, 2) == 8",
    ),
    (
        "mmlu_stem/test.jsonl",
        "instruction",
        3018,
        None,
        "D. increase the mortality rate\n\nC. reduce the carrying",
    ),
    ("self_instruct/*.jsonl", "instruction", 427, None, "breakfast"),
    ("svamp/*.jsonl", "instruction", 1000, None, "145.0"),
    ("humaneval/*.gz", "code_task", 164, None, "def has_close_elements("),
]


@pytest.mark.parametrize(
    ("pattern", "renderer", "count", "solved", "line"), REAL, ids=[row[0] for row in REAL]
)
def test_published_data_is_rendered_without_a_rejected_document(pattern, renderer, count, solved, line):
    found = documents(pattern, renderer)
    assert len(found) == count
    assert not [one.reason for one in found if one.reason]
    assert any(line in one.text for one in found)
    assert not [one for one in found if not one.text.strip()]
    if solved is not None:
        assert sum(one.meta["solved"] is True for one in found) == solved


def test_every_dialect_of_swe_agent_has_its_steps():
    for one in documents("swe_agent/*.traj", "swe_agent"):
        acts, seen = one.text.count("<action>\n"), one.text.count("<observation>\n")
        assert acts == seen > 3 or one.text.count("<tool_call>") > 3
        assert (
            "SyntaxError" in one.text
            or "TimeDelta" in one.text
            or "pydicom" in one.text
            or "has_close" in one.text
        )


def test_logs_of_many_programs_lose_addresses_but_no_lines():
    before = [
        path.read_bytes() for path in sorted(SHARED.glob("log_formats/logfile_*")) if path.suffix != ".gz"
    ]
    found = documents("log_formats/logfile_*[!z]", "log")
    assert sum(one.text.count("\n") for one in found) == sum(data.count(b"\n") for data in before)
    joined = "".join(one.text for one in found)
    assert "host1" in joined
    assert "@gmail.com" not in joined
    assert "\x1b[" not in joined
