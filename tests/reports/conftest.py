"""A whole experiment as it lies on disk: real records, recipes, bets, Parquet; the numbers are made up."""

import json
import math
import random
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmlab.artifacts import Artifact, Out, records
from lmlab.core.config import encode, fingerprint
from lmlab.core.provenance import Provenance
from lmlab.evals.steps import Evaluation
from lmlab.models.config import Dense, Grug
from lmlab.reports import report
from lmlab.science.flops import flops_per_token
from lmlab.science.steps import call_bet, file_bet
from lmlab.serving.steps import Samples
from lmlab.storage import Path, write_json
from lmlab.training import identity
from lmlab.training.recipe import AdamW, Mix, MuonH, Run
from lmlab.training.steps import Exported, Ladder, Rung, Trained, rungs_of

VERSION = "2026.11.30"
DOMAINS = (
    "prose",
    "python",
    "rst",
    "markdown",
    "c-headers",
    "javascript",
    "typescript",
    "json",
    "css",
    "html",
)
DOMAINS += ("svg", "gettext-de", "gettext-fr", "gettext-ja", "gettext-ru", "licenses", "changelogs", "types")
HOSTILE = "<script>alert(1)</script> ]]> <!-- \u202egnp.exe\u202c & שלום עולם \x00\x1b[31m"
DAWN = 1_796_000_000.0
PROVENANCE = Provenance(
    commit="0f1e2d3c4b5a69788796a5b4c3d2e1f001122334",
    tree="aa",
    dirty=True,
    branch="main",
    argv=("/home/ada/lmlab/.venv/bin/lmlab", "run", "/home/ada/lmlab/experiments/quickstart.py"),
    user="ada",
    host="workbench",
    python="3.11.9",
    launched_at=DAWN,
)


@dataclass
class Lab:
    """Builds artifacts below a root, one after the other in time."""

    root: Path
    now: float = DAWN

    def place(self, name: str) -> Path:
        return self.root / name / VERSION

    def commit(self, made: Artifact, step: str, inputs: list[Artifact], seconds: float, **more: Any) -> None:
        """Write the record of an artifact that took so long."""
        config = {"type": step, **{f"input{i}": value.address for i, value in enumerate(inputs)}}
        record = records.Record(
            schema=records.SCHEMA,
            name=made.name,
            version=made.version,
            step=step,
            fingerprint=fingerprint(config),
            config=config,
            inputs=tuple(records.Input(v.name, v.version, "f", "e") for v in inputs),
            after=more.get("after", ()),
            result_type=type(made).__name__,
            result={},
            source=None,
            files=records.seal(made.path),
            provenance=PROVENANCE,
            source_digest="",
            started=self.now,
            finished=self.now + seconds,
            attempt=1,
            epoch="e",
        )
        self.now += seconds + 0.2
        made.path.make_folder()
        (made.path / records.RECORD).write_bytes(json.dumps(encode(record)).encode())

    def simple(self, name: str, step: str, inputs: list[Artifact], seconds: float) -> Artifact:
        made = Artifact.at(self.place(name), name=name, version=VERSION)
        self.commit(made, step, inputs, seconds)
        return made


@dataclass
class Experiment:
    """The arguments of a report."""

    root: Path
    arguments: dict[str, Any]

    @property
    def out(self) -> Out:
        return Out.at(self.root / "reports/quickstart" / VERSION, name="reports/quickstart", version=VERSION)


@pytest.fixture
def experiment(tmp_path):
    return make_experiment(Path(tmp_path))


@pytest.fixture(scope="session")
def experiment_at():
    """Makes an experiment below a folder, with given domains."""
    return make_experiment


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """One experiment, its report's result and the page, for tests that only read."""
    made = make_experiment(Path(tmp_path_factory.mktemp("lab")))
    result = report.body(made.out, **made.arguments)
    return made, result, (made.out.path / result.file).read_text()


def make_experiment(root: Path, domains: tuple[str, ...] = DOMAINS) -> Experiment:
    lab = Lab(root)
    raw = Artifact.at(lab.place("raw/quickstart"), name="raw/quickstart", version=VERSION)
    write_manifest(raw.path)
    lab.commit(raw, "fetch", [], 14.2)
    documents = lab.simple("documents/quickstart", "extract", [raw], 21.7)
    corpus = Artifact.at(lab.place("corpus/quickstart"), name="corpus/quickstart", version=VERSION)
    write_corpus(corpus.path, domains)
    lab.commit(corpus, "curate", [documents], 19.4)
    tokenizer = lab.simple("tokenizers/quickstart", "train_tokenizer", [corpus], 8.1)
    tokens = lab.simple("tokens/quickstart", "tokenize", [corpus, tokenizer], 11.3)
    holdout = lab.simple("tokens/quickstart-holdout", "tokenize", [corpus, tokenizer], 0.9)
    recipe = Run(
        Grug.sized(256, vocab=8192),
        Mix({tokens: 1.0}, alpha=0.3),
        MuonH(lr=0.03, adam_lr=0.004),
        batch=16,
        seq=256,
        steps=300,
        validation=holdout,
        validation_every=30,
    )
    ladder = make_ladder(lab, recipe, [tokens, holdout])
    out = Out.at(lab.place("bets/quickstart"), name="bets/quickstart", version=VERSION)
    filed = file_bet.body(out, ladder, recipe.model, "runs/grug", recipe.tokens, recipe.seq)
    bet = type(filed).at(out.path, name=out.name, version=VERSION, **vars(filed))
    lab.commit(bet, "file_bet", [ladder], 0.05)
    run = make_run(lab, "runs/grug", recipe, [tokens, holdout], (bet.address,))
    dense = Dense.sized(192, vocab=8192)
    short = replace(recipe, model=dense, optimizer=AdamW(lr=0.003), steps=150)
    baseline = make_run(lab, "runs/dense", short, [tokens, holdout], ())
    evaluation = make_evaluation(lab, domains, [run, holdout, corpus, baseline])
    out = Out.at(lab.place("calls/quickstart"), name="calls/quickstart", version=VERSION)
    decided = call_bet.body(out, bet, run)
    called = type(decided).at(out.path, name=out.name, version=VERSION, **vars(decided))
    lab.commit(called, "call_bet", [bet, run], 0.02)
    exported = Exported.at(
        lab.place("models/grug"),
        name="models/grug",
        version=VERSION,
        params=recipe.model.param_count(),
        architecture="LmlabGrugForCausalLM",
        size_bytes=31_450_112,
        tree_sha256="ab" * 32,
    )
    lab.commit(exported, "export", [run, tokenizer], 3.3)
    samples = make_samples(lab, [exported])
    given = {
        "run": run,
        "baseline": baseline,
        "evaluation": evaluation,
        "bet": bet,
        "called": called,
        "corpus": corpus,
        "ladder": ladder,
        "exported": exported,
        "samples": samples,
        "title": "A mixture of experts in twelve minutes",
        "question": "Does a small Grug mixture of experts, trained for minutes on two CPU cores, predict "
        "unseen text better than a strong compressor, n-grams and a dense model?",
    }
    return Experiment(root, given)


def law(flops: float) -> float:
    return 1.05 + 95.0 * flops**-0.143


def make_ladder(lab: Lab, recipe: Run, inputs: list[Artifact]) -> Ladder:
    place, rungs = lab.place("ladder/quickstart"), []
    for number, rung in enumerate(rungs_of(recipe, (64, 96, 128), None)):
        identity.keep(rung, place / "rungs" / f"{number}-{rung.model.hidden}")
        flops = flops_per_token(rung.model.shape(rung.seq)).training * rung.tokens
        wobble = (1.0, 0.992, 1.004)[number]
        params = rung.model.param_count(), rung.model.active_param_count()
        rungs.append(Rung(rung.model.hidden, *params, rung.tokens, flops, law(flops) * wobble, 9.0))
    ladder = Ladder.at(place, name="ladder/quickstart", version=VERSION, rungs=tuple(rungs))
    lab.commit(ladder, "ladder", inputs, 47.5)
    return ladder


def make_run(lab: Lab, name: str, recipe: Run, inputs: list[Artifact], after: tuple[str, ...]) -> Trained:
    place, draw = lab.place(name), random.Random(name)
    identity.keep(recipe, place)
    per_token = flops_per_token(recipe.model.shape(recipe.seq)).training
    is_sparse, rows, reading = isinstance(recipe.model, Grug), [], 0.0
    for step in range(1, recipe.steps + 1):
        tokens = step * recipe.tokens_per_step
        row = {"step": step, "tokens": tokens, "flops": tokens * per_token, "elapsed_s": step * 0.6}
        curve = 3.3 + 5.8 * math.exp(-step / 25) + 1.8 * math.exp(-step / 130)
        row |= {"train/loss": curve + draw.gauss(0, 0.06), "lr": 0.03, "throughput/tokens_per_s": 5_100.0}
        if is_sparse:
            row |= {"router/max_over_mean_load": 1.08 + 1.6 * math.exp(-step / 18) + abs(draw.gauss(0, 0.03))}
            row |= {"router/overflow": 0.004}
        rows.append(row)
        if step % 30 == 0 or step == recipe.steps:
            reading = (
                law(tokens * per_token)
                * (1 + 0.18 * (1 - step / recipe.steps))
                * (1.0 if is_sparse else 1.045)
            )
            place_of = {key: row[key] for key in ("step", "tokens", "flops")}
            rows.append({**place_of, "holdout/macro_bpb": reading, "holdout/bpb/prose": reading * 0.97})
    (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = Trained.at(
        place,
        name=name,
        version=VERSION,
        steps=recipe.steps,
        tokens=recipe.tokens,
        params=recipe.model.param_count(),
        active_params=recipe.model.active_param_count(),
        flops=recipe.tokens * per_token,
        loss=3.41,
        holdout_macro_bpb=reading,
        train_seconds=recipe.steps * 0.62,
        compile_seconds=11.8,
        tokens_per_second=6_600.0,
        model=recipe.model,
    )
    lab.commit(run, "train", inputs, recipe.steps * 0.7, after=after)
    return run


def make_evaluation(lab: Lab, domains: tuple[str, ...], inputs: list[Artifact]) -> Evaluation:
    draw = random.Random(4)
    columns = {"grug": 1.0, "dense": 1.07, "zstd -19": 1.31, "unigram": 1.72, "5-gram": 1.09}
    rows = []
    for domain in domains:
        level = draw.uniform(1.35, 2.7)
        bpb = {name: level * factor * draw.uniform(0.93, 1.07) for name, factor in columns.items()}
        row = {"domain": domain, "documents": draw.randrange(2, 40), "bytes": draw.randrange(50_000, 90_000)}
        rows.append({**row, "tokens": row["bytes"] // 3, "bpb": bpb})
    macro = {name: sum(row["bpb"][name] for row in rows) / len(rows) for name in columns}
    model = "final weights in bfloat16; a token sees at most 256 of its document before it"
    grams = "interpolated modified Kneser-Ney, counted over the very tokens the main run trained on"
    zstd = "each document compressed on its own, level 19, no dictionary"
    how = {"grug": model, "dense": model, "zstd -19": zstd, "unigram": grams, "5-gram": grams}
    place = lab.place("evals/quickstart")
    table = [{"name": name, "kind": "model", "how": how[name]} for name in columns]
    scores = {
        "unit": "bits per byte",
        "main": "grug",
        "macro": macro,
        "micro": {k: v * 0.98 for k, v in macro.items()},
    }
    write_json(place / "scores.json", {**scores, "domains": rows, "columns": table})
    evaluation = Evaluation.at(
        place,
        name="evals/quickstart",
        version=VERSION,
        macro_bpb=macro["grug"],
        micro_bpb=macro["grug"],
        baselines={name: value for name, value in macro.items() if name != "grug"},
    )
    lab.commit(evaluation, "evaluate", inputs, 38.8)
    return evaluation


def make_samples(lab: Lab, inputs: list[Artifact]) -> Samples:
    place = lab.place("samples/quickstart")
    texts = (
        (
            "The President of the United States ",
            "shall have the power to the general of the State, and the\nright of the people to be the law.",
        ),
        (
            "def __init__(self, ",
            "name, value=None):\n        self.name = name\n        self._value = value\n        return self",
        ),
        ("All human beings are born ", "to the same time and the other parts of the world. " + HOSTILE),
    )
    rows = [{"prompt": p, "completion": c, "tokens": 48, "endpoint": "/v1/completions"} for p, c in texts]
    write_json(place / "samples.json", rows)
    samples = Samples.at(
        place, name="samples/quickstart", version=VERSION, requests=3, tokens=144, tokens_per_second=61.5
    )
    lab.commit(samples, "sample", inputs, 6.4)
    return samples


def write_manifest(place: Path) -> None:
    packages = (("pypi", "django", "5.2", "BSD-3-Clause"), ("npm", "typescript", "5.9.3", "Apache-2.0"))
    archives = [
        {
            "file": f"{name}-{version}.tar.gz",
            "registry": registry,
            "package": name,
            "version": version,
            "sha256": "cd" * 32,
            "bytes": 8_412_331,
            "license": license_,
            "domain": "python, rst",
        }
        for registry, name, version, license_ in packages
    ]
    write_json(place / "manifest.json", {"source": "pypi+npm", "archives": archives})


def write_corpus(place: Path, domains: tuple[str, ...] = DOMAINS) -> None:
    counts = (
        ("extract", 9_412, 9_305, {"not text": 88, "empty": 19}),
        ("normalize", 9_305, 9_288, {"blank": 17}),
    )
    counts += (("language", 9_288, 9_288, {}), ("exact", 9_288, 7_034, {"exact duplicate": 2_254}))
    counts += (("fuzzy", 7_034, 6_120, {"near duplicate": 914}), ("holdout", 6_120, 5_988, {"held out": 132}))
    counts += (("decontaminate", 5_988, 5_861, {"repeats held-out text": 127}),)
    stages = [
        {
            "stage": stage,
            "documents_in": before,
            "documents_out": after,
            "bytes_in": before * 5_200,
            "bytes_out": after * 5_200,
            "dropped": dropped,
        }
        for stage, before, after, dropped in counts
    ]
    draw = random.Random(2)
    table = [
        {
            "domain": domain,
            "train_documents": draw.randrange(40, 900),
            "train_bytes": int(10 ** draw.uniform(5.2, 7.0)),
            "holdout_documents": draw.randrange(2, 30),
            "holdout_bytes": draw.randrange(50_000, 90_000),
        }
        for domain in domains
    ]
    write_json(place / "stages.json", {"stages": stages, "domains": table})
    text = (
        "The quick start says what was dropped.\n\nA second paragraph follows, and it goes on for a while. "
    )
    write_documents(place / "train", [(domain, text * 9, "") for domain in domains])
    write_documents(
        place / "rejected" / "exact",
        [("python", "", "exact duplicate: of 00ff"), ("prose", text, "exact duplicate: of 1ab3")],
    )
    code = "class Field:\n    def __init__(self, *args):\n        pass\n" * 9
    write_documents(
        place / "rejected" / "fuzzy", [("python", code, "near duplicate: 0.93 of it is in 00ff12ab")] * 2
    )
    write_documents(
        place / "rejected" / "decontaminate",
        [
            ("prose", HOSTILE * 3 + text, "repeats held-out text: 0.8 of its 13-grams"),
            ("json", "x" * 1_000_000, HOSTILE),
        ],
    )


def write_documents(folder: Path, rows: list[tuple[str, str, str]]) -> None:
    """One part of documents: (domain, text, reason)."""
    table = {
        "id": [f"{i:032x}" for i in range(len(rows))],
        "text": pa.array([text for _, text, _ in rows], pa.large_string()),
        "source_id": [f"package/{domain}/file-{i}.txt" for i, (domain, _, _) in enumerate(rows)],
        "meta": [json.dumps({"domain": d, "path": f"src/{d}/file.txt"}) for d, _, _ in rows],
        "reason": [reason for _, _, reason in rows],
    }
    with (folder / "part-00000-of-00001.parquet").writer() as temporary:
        pq.write_table(pa.table(table), temporary)
