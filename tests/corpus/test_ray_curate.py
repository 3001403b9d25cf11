"""The pipeline of a corpus on a cluster of two nodes: the bytes are those of a local run."""

import pytest
from sample_archives import prose

from lmlab.corpus import Holdout, curate


def files(path):
    return {p.relative_to(path): p.read_bytes() for p in path.walk()}


@pytest.mark.ray
@pytest.mark.slow
def test_curating_on_a_cluster_gives_the_bytes_of_a_local_run(
    ray_cluster, documents, out, enough, monkeypatch
):
    twins = [(domain, f"{source}/twin", f"{text}\n{prose(9000, 9)}") for domain, source, text in enough[::7]]
    made = documents([*enough, *twins], parts=5)
    small = Holdout(min_bytes=4_000)
    curate.body(out("here"), made, holdout=small, workers=2)
    monkeypatch.setenv("LMLAB_ON", ray_cluster.client_address)
    curate.body(out("there"), made, holdout=small, workers=2)
    assert files(out("here").path) == files(out("there").path)
