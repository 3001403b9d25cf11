"""The step by which a source is taken in: its manifest is checked, and each document gets its slice."""

from itertools import islice

from lmlab.artifacts import Artifact, Out, RunOnly, step
from lmlab.corpus.manifest import Manifest, Use, check, slices
from lmlab.corpus.steps import Attributes, annotated


@step
def ingest(
    out: Out,
    documents: Artifact,
    raw: Artifact,
    manifest: Manifest,
    *,
    purpose: Use = "train",
    workers: RunOnly[int] = 2,
) -> Attributes:
    """Check the fetched files against a manifest, and say which slice each document belongs to.

    `select(…, Keep("ingest", slices, "slice", among=("train",)))` takes one. Raises InputError where use,
    content or license are not what the manifest says.
    """
    import pyarrow as pa

    from lmlab.corpus.schema import parts_of
    from lmlab.dataflow.files import read_parquet
    from lmlab.storage import read_json

    check(manifest, read_json(raw.path / "manifest.json"), purpose)
    most, parts = manifest.max_documents, parts_of(documents.path)
    # Ids are hashes, in order over the parts: the first so many are a sample of all.
    ids = (id_ for part in parts for id_ in read_parquet(part, ["id"]).column("id").to_pylist())
    last = "" if most is None else next(islice(ids, most - 1, None), "")
    schema = pa.schema([("id", pa.string()), ("slice", pa.string())])
    return annotated(out, documents, slices, schema, workers, (manifest, last))
