"""Documents and their attributes to the documents that are kept: rules are applied in order, in one pass.

A rule sees only what the rules before it kept, and a document without a row in its attributes is dropped
unless the rule says otherwise. Where spans are cut from texts, the documents get new ids and new places.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmlab.core.errors import ConfigError, InputError
from lmlab.corpus.attributes import Parts, Say, read_attribute
from lmlab.corpus.config import Normalization, RemoveSpans, Rule
from lmlab.corpus.normalizing import PACKED, normalize_all
from lmlab.corpus.schema import DOCUMENTS, Stage, kind_of, merged, parts_of, text_sizes, write_rejected
from lmlab.dataflow.files import read_parquet, write_parquet
from lmlab.dataflow.runner import Runner
from lmlab.storage import Path

_CUTS = pa.list_(pa.struct({"start": pa.int64(), "end": pa.int64(), "replacement": pa.string()}))


def select_all(
    documents: Path, out: Path, rules: Sequence[Rule], rejected: Path | None, runner: Runner, say: Say
) -> list[Stage]:
    """Write what all rules keep of `documents` to `out`; a stage for each rule."""
    _check(rules)
    edits = any(isinstance(rule, RemoveSpans) for rule in rules)
    target = out / ".work" / "edited" if edits else out
    choose = partial(select_part, out=target, rules=rules, rejected=rejected)
    said = partial(say, "selecting")
    stages = merged(runner.run(choose, parts_of(documents), name="select", progress=said))
    if edits:
        edited = parts_of(target)
        settings = Normalization(math.ceil(PACKED * sum(path.size() for path in edited) / len(edited)))
        stages += normalize_all([target], out, rejected or out / ".work" / "rejected", settings, runner, say)
        (out / ".work").remove_tree()
    return stages


def _check(rules: Sequence[Rule]) -> None:
    names = [rule.stage for rule in rules]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"The rules are {', '.join(map(repr, names)) or 'none'}: what each rejects goes to a folder of "
            "its name, so there must be some, of different names. Name them."
        )


def replay_all(documents: Path, out: Path, share: float, runner: Runner) -> Stage:
    """Write the first ceil((1 - share) * N) of N documents, again and again until they are N."""
    parts = Parts({"": documents})
    total = int(parts.starts[-1])
    kept = total - int(Fraction(str(share)) * total)  # as a fraction: 0.29 * 100 is 28.999… as a float
    times = np.zeros(total, int)
    times[:kept] = total // max(1, kept)
    times[: total % max(1, kept)] += 1
    tasks = [(part, times[a:b]) for part, (a, b) in zip(parts.paths, pairwise(parts.starts), strict=True)]
    (stage,) = merged(runner.run(partial(replay_part, out=out), tasks, name="replay"))
    return stage


def replay_part(task: tuple[Path, np.ndarray], out: Path) -> list[Stage]:
    """Write one part with its rows as often as they are due."""
    part, times = task
    table = read_parquet(part, DOCUMENTS.names)
    again = table.take(pa.array(np.repeat(np.arange(table.num_rows), times))).combine_chunks()
    write_parquet(out / part.name, again)
    stage = Stage("replay").take(text_sizes(table))
    stage.documents_out, stage.bytes_out = again.num_rows, int(text_sizes(again).sum())
    return [stage]


def select_part(part: Path, out: Path, rules: Sequence[Rule], rejected: Path | None) -> list[Stage]:
    """Write what the rules keep of one part, even if it is nothing; what they drop goes to `rejected`."""
    table, stages = read_parquet(part, DOCUMENTS.names), []
    for rule in rules:
        before = table
        table, reasons = judged(rule, table, part.name)
        kept = np.array([reason is None for reason in reasons], bool)
        if rejected is not None:
            write_rejected(rejected / rule.stage / part.name, before, reasons)
        is_edited = pc.call_function("not_equal", [before.column("text"), table.column("text")])
        table = table.filter(pa.array(kept)).combine_chunks()
        stage = Stage(rule.stage).take(text_sizes(before), kept)
        stage.bytes_out = int(text_sizes(table).sum())
        stage.edited = is_edited.filter(pa.array(kept)).to_pylist().count(True)
        stage.dropped = Counter(kind_of(reason) for reason in reasons if reason is not None)
        stages.append(stage)
    write_parquet(out / part.name, table.select(DOCUMENTS.names).cast(DOCUMENTS))
    return stages


def judged(rule: Rule, table: pa.Table, part_name: str) -> tuple[pa.Table, list[str | None]]:
    """The documents, edited if that is the rule, and why each is dropped; None if it is kept."""
    attributes = rule.attributes.path
    found = read_attribute(attributes, part_name, rule.column, table.column("id"), may_miss=True)
    values = found.column(rule.column).to_pylist()
    absent = None if rule.keep_if_missing else f"no attribute: {attributes.name} has no row for it"
    is_missing = found.column("id").is_null().to_pylist()
    try:
        if isinstance(rule, RemoveSpans):
            table, reasons = _without_spans(table, values)
        else:
            reasons = [rule.fault(value) for value in values]
    except (TypeError, LookupError) as error:
        raise InputError(
            f"{attributes} holds {found.column(rule.column).type} in {rule.column!r}, by which "
            f"{rule.stage!r} can't be decided ({error}). Name a column of what a {type(rule).__name__} needs."
        ) from error
    return table, [absent if m else reason for m, reason in zip(is_missing, reasons, strict=True)]


def _without_spans(table: pa.Table, spans: Iterable[Any]) -> tuple[pa.Table, list[str | None]]:
    """Cut them out of the original text, which stays beside the edited one: the next rule's lie in it too."""
    if "cuts" not in table.column_names:
        table = table.append_column("original", table.column("text"))
        table = table.append_column("cuts", pa.array([[]] * table.num_rows, _CUTS))
    texts, reasons, all_cuts = [], [], []
    columns = (table.column(name).to_pylist() for name in ("original", "text", "cuts"))
    for original, before, cuts, more in zip(*columns, spans, strict=True):
        new = [(cut["start"], cut["end"], cut.get("replacement", "")) for cut in more or ()]
        merged = _merged([*((cut["start"], cut["end"], cut["replacement"]) for cut in cuts), *new])
        text = _cut(original, merged) if new else before
        texts.append(text)
        all_cuts.append([dict(zip(("start", "end", "replacement"), cut, strict=True)) for cut in merged])
        reasons.append("nothing left: all of it was cut" if new and not text.strip() else None)
    made = {"text": pa.array(texts, pa.large_string()), "cuts": pa.array(all_cuts, _CUTS)}
    for name, values in made.items():
        table = table.set_column(table.column_names.index(name), name, values)
    return table, reasons


def _merged(spans: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """In order, and those that overlap as one with the replacement of the first."""
    merged: list[tuple[int, int, str]] = []
    for start, end, replacement in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]), merged[-1][2])
        else:
            merged.append((start, end, replacement))
    return merged


def _cut(text: str, spans: Sequence[tuple[int, int, str]]) -> str:
    data = text.encode()
    edges = [0, *(edge for span in spans for edge in span[:2]), len(data)]
    if edges != sorted(edges):
        raise InputError(
            f"The spans {spans} do not lie in order in a text of {len(data)} bytes: they were made of "
            "another text. Make them again of these documents."
        )
    kept = [data[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
    put = [*(replacement.encode() for _, _, replacement in spans), b""]
    return b"".join(piece for pair in zip(kept, put, strict=True) for piece in pair).decode()
