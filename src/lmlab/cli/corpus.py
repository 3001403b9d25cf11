"""`lmlab corpus VERB FOLDER`: look at, clean and sort a folder of text without writing an experiment.

Every verb first reads what lies there as documents, and then runs the steps that experiments run. Nothing in
the folder is changed; what is written appears in --out when it is whole.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import tyro

from lmlab import corpus as package
from lmlab.artifacts import Artifact, Out
from lmlab.cli.table import table
from lmlab.core.errors import ConfigError
from lmlab.core.units import format_bytes
from lmlab.corpus.config import Drop, Fuzzy, RemoveSpans
from lmlab.storage import Path, copy, read_json

STAGES = ("near", "paragraphs", "registers", "redact")
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class CorpusFlags:
    """Look at, clean and sort a folder of text: any mix of text, pages, mail, archives and files of rows.

    - inspect FOLDER (what lies there, what can't be read, and some of it)
    - stats FOLDER (documents and text by domain and by language)
    - dedup FOLDER [--out DIR] (exact and near duplicates, each with the document that it repeats)
    - clean FOLDER --out DIR (without duplicates, personal data replaced; more with --stages)
    - decontaminate FOLDER EVAL … [--out DIR] (what repeats the records of eval files)
    - extract FOLDER --out DIR (documents as they are)
    - quality FOLDER --model MODEL, train-quality LABELS --good LABEL --out DIR
    - topics FOLDER [--count 16] (what it is about)
    - sources [NAME] (collections known by name), fetch NAME --pin COMMIT --out DIR
    """

    subverb: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="VERB")] = ""
    """One of those above."""
    paths: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PATH")] = ()
    """What it works on."""
    out: str | None = None
    """A new folder for what it makes."""
    jsonl: bool = False
    """Write .jsonl.zst files in place of Parquet."""
    text_field: str | None = None
    """The field of rows that holds their text; otherwise text, content, body, …"""
    renderer: str | None = None
    """What becomes of each file or row (docs/reference/renderers.md); otherwise as its name suggests."""
    stages: tuple[str, ...] = ("near", "redact")
    """clean: which of near, paragraphs, registers and redact, besides exact duplicates."""
    containment: float = 0.75
    """dedup, clean: share of a text that must stand in another one to be a near duplicate."""
    model: str = ""
    """quality: what train-quality made, or a fastText file."""
    good: tuple[str, ...] = ()
    """quality, train-quality: the labels of good documents."""
    pin: str = ""
    """fetch: commit of the repository, or sha256 of the file."""
    count: int = 16
    """How many samples, pairs or topics."""
    seed: int = 0
    """Another seed shows other samples."""
    workers: int = 2
    """Worker processes."""
    json: bool = False
    """Print JSON."""


class Answer(NamedTuple):
    """What a verb found: as a JSON value, and as lines for people."""

    value: Any
    lines: Sequence[str]


def corpus(flags: CorpusFlags, _fields: list[str]) -> int:
    """`lmlab corpus`."""
    if flags.subverb not in SUBVERBS:
        raise ConfigError(f"lmlab corpus has no verb {flags.subverb!r}. It has: {', '.join(SUBVERBS)}.")
    function, usage, own = SUBVERBS[flags.subverb]
    given = [
        name for name in OPTIONS if getattr(flags, name) != getattr(CorpusFlags, name) and name not in own
    ]
    least = len(usage.replace("[NAME]", "").replace("…", "").split())
    most = 99 if "…" in usage else len(usage.split())
    if given or not least <= len(flags.paths) <= most:
        got = f"--{given[0].replace('_', '-')}" if given else " ".join(map(repr, flags.paths)) or "nothing"
        raise ConfigError(f"lmlab corpus {flags.subverb} takes {usage}, not {got}. See --help.")
    target = Path(flags.out) if flags.out else None
    if target is not None and target.exists() and any(target.children()):
        raise ConfigError(f"{target} holds files already. Give a new folder, so that nothing is mixed up.")
    with TemporaryDirectory(prefix="lmlab-corpus-", dir=_beside(target)) as folder:
        answer = function(flags, Path(folder))
    print(json.dumps(answer.value, ensure_ascii=False) if flags.json else "\n".join(answer.lines))
    return 0


def _beside(target: Path | None) -> str | None:
    """Where to work: on the disk of what is made, so that it is there at once when it is whole."""
    if target is None or not target.is_local:
        return None
    target.parent.make_folder()
    return str(target.parent)


# -- looking ---------------------------------------------------------------------------------------


def _inspect(flags: CorpusFlags, work: Path) -> Answer:
    place = _documents(flags, work)
    rows = list(_rows(place))
    stages = _stages(place)
    dropped = [
        {"source_id": row["source_id"], "reason": row["reason"]} for row in _rows(place, "rejected/*/part-*")
    ]
    kinds = Counter(_kind(row["source_id"]) for row in rows)
    sizes = [len(row["text"].encode()) for row in rows]
    from random import Random

    drawn = Random(flags.seed).sample(rows, min(flags.count, len(rows)))
    value = {
        "documents": len(rows),
        "bytes": sum(sizes),
        "median_bytes": int(median(sizes)) if sizes else 0,
        "largest_bytes": max(sizes, default=0),
        "distinct": len({row["id"] for row in rows}),
        "kinds": dict(kinds.most_common()),
        "left_out": dropped,
        "samples": [{"source_id": row["source_id"], "text": row["text"][:2000]} for row in drawn],
        "stages": stages,
    }
    lines = [
        f"{len(rows):,} documents, of which {len(rows) - value['distinct']:,} repeat another one exactly",
        f"{format_bytes(sum(sizes))} of text, {format_bytes(value['largest_bytes'])} in the largest one",
        *table([[f"{count:,}", kind] for kind, count in kinds.most_common(20)], ("documents", "from")),
    ]
    if dropped:
        lines += ["", f"{len(dropped):,} left out:"]
        lines += [f"  {row['source_id']}: {row['reason']}" for row in dropped[: flags.count]]
    for row in value["samples"]:
        lines += ["", f"--- {row['source_id']}", row["text"][:300].strip()]
    return Answer(value, lines)


def _kind(source_id: str) -> str:
    name = source_id.rpartition("/")[2].partition("#")[0].partition(":")[0]
    return f".{name.rpartition('.')[2]}" if "." in name else "(no ending)"


def _stats(flags: CorpusFlags, work: Path) -> Answer:
    documents = _given(flags, work)
    told = _step(work, "languages", documents, workers=flags.workers)
    language = {row["id"]: row["value"] for row in _rows(told.path)}
    by: dict[str, dict[str, list[int]]] = {"domain": {}, "language": {}}
    for row in _rows(documents.path):
        size = len(row["text"].encode())
        by["domain"].setdefault(json.loads(row["meta"])["domain"], []).append(size)
        by["language"].setdefault(language[row["id"]], []).append(size)
    total = sum(map(sum, by["domain"].values())) or 1
    value: dict[str, list[Row]] = {
        what: [
            {what: name, "documents": len(sizes), "bytes": sum(sizes), "median_bytes": int(median(sizes))}
            for name, sizes in sorted(groups.items(), key=lambda group: -sum(group[1]))
        ]
        for what, groups in by.items()
    }
    lines: list[str] = []
    for what, rows in value.items():
        cells = [
            [row[what], f"{row['documents']:,}", format_bytes(row["bytes"]), f"{row['bytes'] / total:.1%}",
             format_bytes(row["median_bytes"])]
            for row in rows
        ]  # fmt: skip
        lines += [*table(cells, (what, "documents", "text", "share", "median")), ""]
    return Answer(value, lines[:-1])


def _quality(flags: CorpusFlags, work: Path) -> Answer:
    if not flags.model:
        raise ConfigError("quality needs --model: what train-quality made, or a fastText file.")
    documents, place = _given(flags, work), Path(flags.model)
    good = {"good": flags.good} if flags.good else {}
    model = Artifact.at(place) if place.is_dir() else flags.model
    scored = _step(work, "quality", documents, model, workers=flags.workers, **good)
    scores = {row["id"]: row["score"] for row in _rows(scored.path)}
    rows = sorted(
        ({"score": scores[row["id"]], "source_id": row["source_id"]} for row in _rows(documents.path)),
        key=lambda row: row["score"],
    )
    _finish(flags, scored.path)
    ends = [*rows[: flags.count], *rows[len(rows) - min(flags.count, len(rows) - flags.count) :]]
    shown = rows if len(rows) <= 2 * flags.count else ends
    lines = table([[f"{row['score']:.3f}", row["source_id"]] for row in shown], ("score", "document"))
    return Answer(rows, [*lines, f"{len(rows):,} documents, worst first"])


def _topics(flags: CorpusFlags, work: Path) -> Answer:
    documents = _given(flags, work)
    # A small folder differs in few directions.
    dims = min(128, max(8, sum(1 for _ in _rows(documents.path)) // 8))
    vectors = _step(work, "embed", documents, dims, workers=flags.workers)
    made = _step(work, "topics", documents, vectors, flags.count, seed=flags.seed, workers=flags.workers)
    rows = sorted(read_json(made.path / "topics.json")["topics"], key=lambda row: -row["documents"])
    cells = [[f"{row['documents']:,}", format_bytes(row["bytes"]), ", ".join(row["words"])] for row in rows]
    _finish(flags, made.path)
    return Answer(rows, table(cells, ("documents", "text", "words")))


def _sources(flags: CorpusFlags, _work: Path) -> Answer:
    from lmlab.corpus.catalogue import lookup, names

    rows = [asdict(lookup(name)) for name in ((flags.paths[0],) if flags.paths else names())]
    if flags.paths:
        return Answer(rows[0], table([[key, value] for key, value in rows[0].items() if value is not None]))
    cells = [
        [
            row["name"],
            "" if row["tokens_billions"] is None else f"{row['tokens_billions']:,g}",
            row["license"],
        ]
        for row in rows
    ]
    return Answer(rows, table(cells, ("collection", "G tokens", "license")))


# -- making ----------------------------------------------------------------------------------------


def _extract(flags: CorpusFlags, work: Path) -> Answer:
    place = _documents(flags, work)
    return _made(flags, place, [])


def _dedup(flags: CorpusFlags, work: Path) -> Answer:
    documents, sources = _unique(flags, work)
    near = _near(flags, work, documents)
    pairs = [
        {
            "dropped": sources[row["id"]],
            "kept": sources[row["duplicate_of"]],
            "containment": round(row["containment"], 3),
        }
        for row in _rows(near.path)
        if row["duplicate_of"] is not None
    ]
    exact = [
        {"dropped": row["source_id"], "kept": row["reason"].partition(": of ")[2], "containment": 1.0}
        for row in _rows(documents.path, "rejected/exact/part-*")
    ]
    kept = _select(flags, work, documents, [Drop("near", near)])
    listed = exact + sorted(pairs, key=lambda pair: -pair["containment"])
    shown = [[f"{pair['containment']:.2f}", pair["dropped"], pair["kept"]] for pair in listed[: flags.count]]
    lines = table(shown, ("in common", "duplicate", "of")) if shown else []
    if len(listed) > len(shown):
        lines.append(f"… and {len(listed) - len(shown):,} more (--count {len(listed)} shows all)")
    said = f"{len(exact):,} exact and {len(pairs):,} near duplicates"
    return _made(flags, kept.path, [*lines, said], {"duplicates": listed})


def _clean(flags: CorpusFlags, work: Path) -> Answer:
    odd = [name for name in flags.stages if name not in STAGES]
    if odd:
        raise ConfigError(f"clean has no stage {odd[0]!r}. It has: {', '.join(STAGES)}.")
    documents, _ = _unique(flags, work)
    make: dict[str, Callable[[], Any]] = {
        "near": lambda: Drop("near", _near(flags, work, documents)),
        "registers": lambda: Drop("registers", _step(work, "registers", documents)),
        "paragraphs": lambda: RemoveSpans("paragraphs", _step(work, "repeated_paragraphs", documents)),
        "redact": lambda: RemoveSpans("redact", _step(work, "redact", documents)),
    }
    # What drops documents comes before what edits them: edited texts have new ids.
    rules = [make[name]() for name in make if name in flags.stages]
    return _made(flags, _select(flags, work, documents, rules).path, [])


def _decontaminate(flags: CorpusFlags, work: Path) -> Answer:
    documents, sources = _unique(flags, work)
    evals = {}
    for number, text in enumerate(flags.paths[1:]):
        place = Path(text)
        name = place.name.partition(".")[0]
        evals[name if name not in evals else f"{name}-{number}"] = Artifact.at(
            _read(place, work / "evals" / str(number), flags)
        )
    found = _step(work, "decontaminate", documents, evals, workers=flags.workers)
    hits = [
        {
            "document": sources[row["id"]],
            "eval": row["eval"],
            "record": row["record"],
            "overlap": row["overlap"],
        }
        for row in _rows(found.path)
        if row["eval"] is not None
    ]
    kept = _select(flags, work, documents, [Drop("decontaminate", found)])
    shown = [
        [f"{hit['overlap']:.2f}", hit["document"], hit["eval"], hit["record"]] for hit in hits[: flags.count]
    ]
    lines = table(shown, ("overlap", "document", "eval", "record")) if shown else []
    return _made(flags, kept.path, [*lines, f"{len(hits):,} documents repeat an eval"], {"repeats": hits})


def _train_quality(flags: CorpusFlags, work: Path) -> Answer:
    if not flags.good or not flags.out:
        raise ConfigError(
            "train-quality needs --good LABEL, what good documents are labelled, and --out DIR."
        )
    made = _step(work, "train_quality", flags.paths[0], flags.good)
    report = read_json(made.path / "model.json")
    _finish(flags, made.path)
    told = report.get("report", report)
    lines = [f"{key}: {value}" for key, value in told.items() if not isinstance(value, list)]
    return Answer(report, [*lines, f"written to {flags.out}"])


def _fetch(flags: CorpusFlags, work: Path) -> Answer:
    from lmlab.corpus.catalogue import lookup

    if not flags.pin or not flags.out:
        raise ConfigError("fetch needs --pin, the commit (or sha256) that is meant, and --out DIR.")
    raw = _step(work, "fetch", (lookup(flags.paths[0]).at(flags.pin),))
    return _made(flags, _step(work, "extract", raw, workers=flags.workers).path, [])


# -- parts -----------------------------------------------------------------------------------------


def _step(work: Path, name: str, *arguments: Any, **options: Any) -> Artifact:
    """Run a step of the corpus package into work/<name>."""
    result = getattr(package, name).body(Out.at(work / name), *arguments, **options)
    return type(result).at(work / name, **asdict(result))


def _read(place: Path, work: Path, flags: CorpusFlags) -> Path:
    """The folder of documents that a place is, or is read into."""
    from lmlab.corpus.folder import Reading, folder_documents, is_corpus
    from lmlab.dataflow.runner import open_runner

    if is_corpus(place):
        return place
    with open_runner(flags.workers) as runner:
        folder_documents(place, work, Reading(flags.text_field, flags.renderer), runner, _say)
    return work


def _documents(flags: CorpusFlags, work: Path) -> Path:
    return _read(Path(flags.paths[0]), work / "documents", flags)


def _given(flags: CorpusFlags, work: Path) -> Artifact:
    return Artifact.at(_documents(flags, work))


def _unique(flags: CorpusFlags, work: Path) -> tuple[Artifact, dict[str, str]]:
    """The documents without exact repeats, and where each comes from by id."""
    made = _step(work, "normalize", _given(flags, work), workers=flags.workers)
    return made, {row["id"]: row["source_id"] for row in _rows(made.path)}


def _near(flags: CorpusFlags, work: Path, documents: Artifact) -> Artifact:
    fuzzy = Fuzzy(containment=flags.containment)
    return _step(work, "near_duplicates", documents, fuzzy, workers=flags.workers)


def _select(flags: CorpusFlags, work: Path, documents: Artifact, rules: list[Any]) -> Artifact:
    return _step(work, "select", documents, tuple(rules), workers=flags.workers)


def _rows(folder: Path, pattern: str = "part-*") -> Iterator[Row]:
    from lmlab.dataflow.files import read_parquet

    for path in sorted(folder.glob(f"{pattern}.parquet")):
        yield from read_parquet(path).to_pylist()


def _stages(folder: Path) -> list[Row]:
    from lmlab.corpus.schema import earlier_stages

    return earlier_stages(folder)


def _made(
    flags: CorpusFlags, folder: Path, lines: Sequence[str], more: dict[str, Any] | None = None
) -> Answer:
    """Say what each stage did, and publish the documents in --out."""
    stages = _stages(folder)
    cells = [
        [row["stage"], f"{row['documents_out']:,}", format_bytes(row["bytes_out"]),
         ", ".join(f"{count:,} {reason}" for reason, count in row["dropped"].items())]
        for row in stages
    ]  # fmt: skip
    shown = table(cells, ("stage", "documents", "text", "dropped"))
    end = [f"written to {flags.out}"] if flags.out else ["nothing was written: --out DIR keeps the documents"]
    for place in (folder.parent / "documents", folder.parent / "normalize"):
        for rejected in (place / "rejected").list() if place != folder else ():
            # Edited texts are compared once more, so a stage can have dropped twice.
            name = (
                f"{rejected.name}-first" if (folder / "rejected" / rejected.name).exists() else rejected.name
            )
            copy.move(rejected, folder / "rejected" / name)
    _finish(flags, folder)
    return Answer({"stages": stages, "out": flags.out, **(more or {})}, [*lines, "", *shown, *end])


def _finish(flags: CorpusFlags, folder: Path) -> None:
    """Move what is whole to --out; documents as JSON lines, if that was asked for."""
    from lmlab.dataflow.files import write_jsonl

    if not flags.out:
        return
    if flags.jsonl:
        for path in sorted(folder.glob("**/part-*.parquet")):
            rows = ({**row, "meta": json.loads(row["meta"])} for row in _rows(path.parent, path.name[:-8]))
            write_jsonl(path.parent / f"{path.name[:-8]}.jsonl.zst", rows)
            path.remove()
    copy.move(folder, Path(flags.out))


def _say(text: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else "\r"
        print(f"\033[K{text} {done}/{total}", file=sys.stderr, end=end, flush=True)


READING = ("text_field", "renderer")
OPTIONS = tuple(
    name for name in CorpusFlags.__dataclass_fields__ if name not in ("subverb", "paths", "workers", "json")
)
SUBVERBS: dict[str, tuple[Callable[[CorpusFlags, Path], Answer], str, tuple[str, ...]]] = {
    "inspect": (_inspect, "FOLDER", (*READING, "count", "seed")),
    "stats": (_stats, "FOLDER", READING),
    "dedup": (_dedup, "FOLDER", (*READING, "out", "jsonl", "containment", "count")),
    "clean": (_clean, "FOLDER", (*READING, "out", "jsonl", "containment", "stages")),
    "decontaminate": (_decontaminate, "FOLDER EVAL …", (*READING, "out", "jsonl", "count")),
    "extract": (_extract, "FOLDER", (*READING, "out", "jsonl")),
    "quality": (_quality, "FOLDER", (*READING, "out", "model", "good", "count")),
    "train-quality": (_train_quality, "LABELS", ("out", "good")),
    "topics": (_topics, "FOLDER", (*READING, "out", "count", "seed")),
    "sources": (_sources, "[NAME]", ()),
    "fetch": (_fetch, "NAME", ("out", "jsonl", "pin")),
}
