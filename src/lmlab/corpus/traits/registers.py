"""Registers: what kind of text it is and how clean, in numbers that rules can be written over.

The statistics are those of Gopher (Rae et al. 2021) and C4 (Raffel et al. 2020). Where the source brings a
judgement of its own, as HPLT does (see `render.documents`), that is taken; else plain rules decide.
"""

import re
from collections import Counter
from typing import Any

import orjson
import pyarrow as pa

from lmlab.corpus.traits.config import STATISTICS, Limit

_TOLD = [("register", "string"), ("machine_translated", "float32"), ("pii", "int32"), ("reason", "string")]
REGISTERS = pa.schema([("id", "string"), *((name, "float32") for name in STATISTICS), *_TOLD])
_LOOKED_AT = 200_000
_STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
_BULLETS = ("- ", "* ", "• ", "‣ ", "– ", "+ ")
_ENDS = (".", "!", "?", '"', "”", "。", "！", "？", ":")
_MARK = re.compile(r"[{}()\[\]<>=;|\\]")
_RUN = 5
_TRANSLATED = re.compile(
    r"(?:machine|automatically|google|bing)[ -]translat|translated (?:by|with) (?:google|bing|deepl|a mach)",
    re.IGNORECASE,
)


def statistics(text: str) -> dict[str, float]:
    """STATISTICS of one text, of which at most 200,000 characters are looked at."""
    text = text[:_LOOKED_AT]
    lines = [line.strip() for line in text.splitlines() if not line.isspace() and line]
    words = text.split()
    runs = list(zip(*(words[i:] for i in range(_RUN)), strict=False))
    count, rows, letters = max(1, len(words)), max(1, len(lines)), sum(map(len, words))
    return {
        "words": len(words),
        "word_length": letters / count,
        "letter_words": sum(map(_has_letter, words)) / count,
        "stop_words": len(_STOP_WORDS.intersection(map(str.lower, words))),
        "symbols": (text.count("#") + text.count("...") + text.count("…")) / count,
        "marks": len(_MARK.findall(text)) / max(1, letters),
        "bullet_lines": sum(line.startswith(_BULLETS) for line in lines) / rows,
        "ellipsis_lines": sum(line.endswith(("...", "…")) for line in lines) / rows,
        "ended_lines": sum(line.endswith(_ENDS) for line in lines) / rows,
        "short_lines": sum(len(line) < 30 for line in lines) / rows,
        "repeated_lines": _repeated(lines),
        "repeated_paragraphs": _repeated([piece for piece in text.split("\n\n") if piece.strip()]),
        "repeated_runs": 1 - len(set(runs)) / max(1, len(runs)) if runs else 0.0,
    }


def register(found: dict[str, float]) -> str:
    """Which kind of text the statistics tell of.

    >>> register(statistics("buy now\\n" * 50))
    'repetition'
    """
    if max(found["repeated_lines"], found["repeated_paragraphs"], found["repeated_runs"]) > 0.5:
        return "repetition"
    if found["marks"] > 0.02:
        return "code"
    if found["bullet_lines"] > 0.5:
        return "list"
    return "boilerplate" if found["short_lines"] > 0.6 and found["ended_lines"] < 0.3 else "prose"


def describe(table: pa.Table, limits: tuple[Limit, ...]) -> pa.Table:
    """The annotation: REGISTERS of each document; `reason` names the first limit it breaks."""
    rows = table.select(["id", "text", "meta"]).to_pylist()
    rows = [{"id": row["id"], **_row(row["text"], orjson.loads(row["meta"]), limits)} for row in rows]
    return pa.Table.from_pylist(rows, schema=REGISTERS)


def _row(text: str, meta: dict[str, Any], limits: tuple[Limit, ...]) -> dict[str, Any]:
    found = statistics(text)
    kind, translated, private = map(meta.get, ("register", "machine_translated", "personal_data"))
    says_so = _TRANSLATED.search(text, 0, 2_000) or _TRANSLATED.search(text, max(0, len(text) - 2_000))
    values = [(limit, found[limit.statistic]) for limit in limits]
    outside = (f"{limit.statistic}: {v:.3g}" for limit, v in values if not limit.lowest <= v <= limit.highest)
    return {
        **found,
        "register": kind if isinstance(kind, str) else register(found),
        "machine_translated": translated if isinstance(translated, float) else 1.0 if says_so else None,
        "pii": int(private) if isinstance(private, int) else None,
        "reason": next(outside, None),
    }


def _has_letter(word: str) -> bool:
    return word.isalpha() or any(map(str.isalpha, word))


def _repeated(pieces: list[str]) -> float:
    """Share of characters in pieces that stood there before."""
    again = sum(len(piece) * (count - 1) for piece, count in Counter(pieces).items() if count > 1)
    return again / max(1, sum(map(len, pieces)))
