"""Labels by a language model: it is asked to score a sample of documents, and the scores are read."""

import html
import re
from collections import Counter

from lmlab.core.errors import InputError
from lmlab.corpus.llm_extract import Extractor, extract_pages
from lmlab.corpus.traits.features import sample_of
from lmlab.dataflow.files import write_jsonl
from lmlab.storage import Path

_SCORE = re.compile(r"score\W{0,10}(\d)\b|^\W*(\d)\b", re.IGNORECASE)


def label_sample(documents: Path, out: Path, judge: Extractor, sample: int) -> Counter[str]:
    """Write labels.jsonl.zst (id, text, label) and answers/; how many answers have a label, or why not."""
    rows = sample_of(documents, sample).to_pylist()[:sample]
    pages = [f"<pre>{html.escape(row['text'][: judge.page_chars])}</pre>" for row in rows]
    counted: Counter[str] = Counter()
    for row, answer in zip(rows, extract_pages(pages, judge, out / "answers"), strict=True):
        found = [score or alone for score, alone in _SCORE.findall(answer.text)]
        row["label"] = found[-1] if found and not answer.reason else None
        counted["labels" if row["label"] else answer.reason.partition(":")[0] or "no score"] += 1
    if not counted["labels"]:
        raise InputError(
            f"None of {len(rows)} answers of {judge.model} holds a score ({dict(counted)}). Say in the "
            "rubric how it is to be written: `Score: 3`."
        )
    write_jsonl(out / "labels.jsonl.zst", (row for row in rows if row["label"]))
    return counted
