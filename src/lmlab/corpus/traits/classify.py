"""A quality classifier: hashed words, a linear model, a calibrated probability, a report that can be checked.

Near duplicates always fall on the same side of the split, so the dev set measures what is new. A published
fastText model (.bin, .ftz) can stand in its place.
"""

import math
import tempfile
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_matrix, vstack

from lmlab.core.config import decode, encode
from lmlab.core.errors import ConfigError, InputError
from lmlab.corpus.components import clusters, star_edges
from lmlab.corpus.config import Fuzzy
from lmlab.corpus.fuzzy import band_keys
from lmlab.corpus.schema import document_id, load_text, parts_of
from lmlab.corpus.traits.config import NGrams
from lmlab.corpus.traits.features import CAP_BYTES, batches, hashed
from lmlab.dataflow.files import read_jsonl, write_parquet
from lmlab.storage import Path, read_json, write_json

SCORES = pa.schema([("id", pa.string()), ("score", pa.float32())])
"""Calibrated probability that a document is good."""
THRESHOLDS = (0.1, 0.25, 0.5, 0.75, 0.9)
TRAIN, CALIBRATE, DEV = range(3)
_SHARES = (0.7, 0.85)
"""Train below the first, dev from the second on, by document id."""
_BINS = 10
_FEWEST = 5
"""Documents of each class that each of the three sides needs."""
_FORMAT = 1


def read_labelled(file: Path, documents: Path | None) -> pa.Table:
    """Rows (id, text, label) of a .jsonl of {"text", "label"}, or of {"id", "label"} about `documents`.

    Of documents labelled twice the first label holds. InputError for a row without them, for an unknown id.
    """
    texts: dict[str, str | None] = {}
    labels: dict[str, str] = {}
    for number, row in enumerate(read_jsonl(file), 1):
        known = row if isinstance(row, dict) else {}
        text, key, label = known.get("text"), known.get("id"), known.get("label")
        if not isinstance(text or key, str) or not isinstance(label, str | int):
            raise InputError(
                f'{file}, line {number}, is not {{"text" or "id": …, "label": …}}, so nothing can be learned '
                f"from it. Mend or remove the line."
            )
        place = document_id(text) if text else str(key)
        texts[place] = texts.get(place) or text
        labels.setdefault(place, str(label))
    for part in parts_of(documents) if documents and None in texts.values() else []:
        found = load_text(part)
        found = found.filter(pc.field("id").isin(list(texts)))
        texts |= dict(zip(*(found.column(name).to_pylist() for name in ("id", "text")), strict=True))
    missing = [key for key, text in texts.items() if text is None]
    if missing:
        raise InputError(
            f"{file} labels {len(missing)} documents whose text is not given, the first {missing[0]}. Give "
            "the documents they belong to, or the text itself."
        )
    columns = [list(texts), list(texts.values()), list(labels.values())]
    schema = pa.schema([("id", pa.string()), ("text", pa.large_string()), ("label", pa.string())])
    return pa.table(columns, schema=schema).sort_by("id").combine_chunks()


def train(labelled: pa.Table, good: tuple[str, ...], ngrams: NGrams, out: Path) -> dict[str, Any]:
    """Write weights.safetensors, model.json and labels.parquet (label, side, score); the report."""
    from safetensors.numpy import save
    from sklearn.linear_model import LogisticRegression

    is_good = np.array([label in good for label in labelled.column("label").to_pylist()], bool)
    side = sides(labelled)
    for name, number in (("train", TRAIN), ("calibrate", CALIBRATE), ("dev", DEV)):
        count = int((is_good & (side == number)).sum()), int((~is_good & (side == number)).sum())
        if min(count) < _FEWEST:
            raise InputError(
                f"The {name} side has {count[0]} good ({', '.join(good)}) and {count[1]} other documents, "
                f"too few to learn or to measure from. Label more: each side needs {_FEWEST} of both."
            )
    features = _present(csr_matrix(vstack([hashed(batch, ngrams) for batch in batches(labelled)])))
    fitted = LogisticRegression(C=30.0, max_iter=300).fit(features[side == TRAIN], is_good[side == TRAIN])
    weights, intercept = fitted.coef_[0].astype(np.float32), float(fitted.intercept_[0])
    raw = (features @ weights).astype(np.float64) + intercept
    platt = LogisticRegression(C=1e6).fit(raw[side == CALIBRATE, None], is_good[side == CALIBRATE])
    slope, offset = float(platt.coef_[0, 0]), float(platt.intercept_[0])
    scores = _sigmoid(slope * raw + offset)
    dev = side == DEV
    report = {
        "good": list(good),
        "labels": dict(sorted(Counter(labelled.column("label").to_pylist()).items())),
        "sides": {name: int((side == i).sum()) for i, name in enumerate(("train", "calibrate", "dev"))},
        "ece_before_calibration": _calibration(_sigmoid(raw[dev]), is_good[dev])["ece"],
        **assess(scores[dev], is_good[dev]),
    }
    about = {"intercept": intercept, "slope": slope, "offset": offset, "ngrams": encode(ngrams)}
    (out / "weights.safetensors").write_bytes(save({"weights": weights}))
    write_json(out / "model.json", {"format": _FORMAT, **about, "report": report})
    kept = labelled.drop_columns(["text"]).append_column("side", pa.array(side))
    write_parquet(out / "labels.parquet", kept.append_column("score", pa.array(scores.astype(np.float32))))
    return report


def sides(labelled: pa.Table) -> np.ndarray:
    """TRAIN, CALIBRATE or DEV for each row: by the smallest id among its near duplicates."""
    deciding = np.array([int(key[:8], 16) / 2**32 for key in labelled.column("id").to_pylist()])
    stars = [star_edges(keys) for keys in band_keys(labelled, Fuzzy()).T]
    left, right = (np.concatenate(side) for side in zip(*stars, strict=True))
    groups = clusters(labelled.num_rows, left, right)
    lowest = np.ones(len(groups.sizes))
    np.minimum.at(lowest, groups.cluster, deciding[groups.row])
    deciding[groups.row] = lowest[groups.cluster]
    return np.searchsorted(_SHARES, deciding, side="right")


def assess(scores: np.ndarray, is_good: np.ndarray) -> dict[str, Any]:
    """AUC, calibration, and agreement, precision and recall at thresholds, with 95 % intervals."""
    from scipy.stats import rankdata

    good, other = int(is_good.sum()), int((~is_good).sum())
    auc = (rankdata(scores)[is_good].sum() - good * (good + 1) / 2) / (good * other)
    q1, q2 = auc / (2 - auc), 2 * auc * auc / (1 + auc)
    # Hanley and McNeil 1982
    variance = auc * (1 - auc) + (good - 1) * (q1 - auc**2) + (other - 1) * (q2 - auc**2)
    spread = 1.96 * math.sqrt(max(variance, 0) / (good * other))
    table = []
    for threshold in THRESHOLDS:
        kept = scores >= threshold
        hits, agreed = int((kept & is_good).sum()), int((kept == is_good).sum())
        shares = {
            "precision": (hits, int(kept.sum())),
            "recall": (hits, good),
            "agreement": (agreed, len(kept)),
        }
        row = {name: share(*counts) for name, counts in shares.items()}
        table.append({"threshold": threshold, "kept": float(kept.mean()), **row})
    interval = {"value": float(auc), "low": float(max(auc - spread, 0)), "high": float(min(auc + spread, 1))}
    return {"auc": interval, "calibration": _calibration(scores, is_good), "thresholds": table}


def share(hits: int, total: int) -> dict[str, float | None]:
    """`hits / total` with Wilson's 95 % interval; None without any.

    >>> round(share(9, 10)["low"], 2)
    0.6
    """
    from scipy.stats import binomtest

    if total == 0:
        return {"value": None, "low": None, "high": None}
    interval = binomtest(hits, total).proportion_ci(method="wilson")
    return {"value": hits / total, "low": float(interval.low), "high": float(interval.high)}


def _calibration(scores: np.ndarray, is_good: np.ndarray) -> dict[str, Any]:
    """Bins of equal width with what was promised and what came true, and their mean difference (ECE)."""
    place = np.minimum((scores * _BINS).astype(int), _BINS - 1)
    bins = []
    for index in np.unique(place).tolist():
        inside = place == index
        promised, true = float(scores[inside].mean()), float(is_good[inside].mean())
        bins.append({"documents": int(inside.sum()), "promised": promised, "true": true})
    error = sum(entry["documents"] * abs(entry["promised"] - entry["true"]) for entry in bins)
    return {"ece": error / len(scores), "bins": bins}


def score(table: pa.Table, settings: tuple[Path, tuple[str, ...]]) -> pa.Table:
    """The annotation: SCORES by the model in a folder that `train` wrote, or by a fastText file.

    For the latter the score is the probability of its labels named in the settings.
    """
    place, good = settings
    if place.name.endswith((".bin", ".ftz")):
        values = _fasttext_scores(table, place, good)
    else:
        about, weights = load(place)
        ngrams = decode(NGrams, about["ngrams"], f"{place}/model.json")
        raw = np.concatenate([_present(hashed(batch, ngrams)) @ weights for batch in batches(table)])
        values = _sigmoid(about["slope"] * (raw.astype(np.float64) + about["intercept"]) + about["offset"])
    return pa.table([table.column("id"), values.astype(np.float32)], schema=SCORES)


@cache
def load(folder: Path) -> tuple[dict[str, Any], np.ndarray]:
    """model.json and the float32 weight of each bucket; InputError for another format."""
    from safetensors.numpy import load as read

    about = read_json(folder / "model.json")
    if about.get("format") != _FORMAT:
        raise InputError(
            f"{folder}/model.json has format {about.get('format')}, not {_FORMAT}. Train it again."
        )
    return about, read((folder / "weights.safetensors").read_bytes())["weights"]


def _fasttext_scores(table: pa.Table, file: Path, good: tuple[str, ...]) -> np.ndarray:
    model, values = load_fasttext(file), []
    for text in table.column("text").to_pylist():
        # Below 0, since at 0 the labels of a small probability are left out.
        labels, probabilities = model.predict(" ".join(text[:CAP_BYTES].split()), k=-1, threshold=-1)
        found = dict(zip((label.removeprefix("__label__") for label in labels), probabilities, strict=True))
        if not any(label in found for label in good):
            raise ConfigError(
                f"{file} knows the labels {', '.join(sorted(found)[:8])}, not {', '.join(good)}, so every "
                "score would be 0. Name in `good` the label of a good document."
            )
        values.append(min(sum(found.get(label, 0.0) for label in good), 1.0))
    return np.array(values, np.float64)


@cache
def load_fasttext(file: Path) -> Any:
    """A fastText classifier from any store; InputError if it is none."""
    import fasttext

    with tempfile.NamedTemporaryFile(suffix=file.name) as copy:
        if not file.is_local:
            copy.write(file.read_bytes())
            copy.flush()
        try:
            return fasttext.load_model(str(file) if file.is_local else copy.name)
        except (ValueError, RuntimeError) as error:
            raise InputError(f"{file} is no fastText model ({error}). Give a .bin or .ftz file.") from error


def _present(counts: csr_matrix) -> csr_matrix:
    """Rows of ones for the features that are there, of length one: how often a word repeats says little."""
    lengths = np.diff(counts.indptr)
    counts.data = np.repeat(1 / np.sqrt(np.maximum(lengths, 1)), lengths).astype(np.float32)
    return counts


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(values, -50, 50)))
