"""Roots on the test services: writes the lmlab.toml that reaches them, for this process and its children."""

import secrets
import urllib.request
from pathlib import Path

import pytest

from lmlab.storage import Path as StoragePath

BUCKET = "lab-tests"
SCHEMES = {"s3": "s3", "ministack": "s3", "gcs": "gs"}
BACKENDS = {
    "s3": 'region = "us-east-1"\naccess_key = "file:{key}"\nsecret_key = "file:{key}"\n',
    "gs": "anonymous = true\n",
}


def make_bucket(endpoint: str) -> str:
    """Make the bucket of the tests; gives the endpoint back."""
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT"), timeout=20):
        return endpoint


def declare_root(
    kind: str, endpoint: str, folder: Path, patch: pytest.MonkeyPatch, extra: str = ""
) -> StoragePath:
    """A fresh root of `kind` (local, s3, ministack, gcs); `extra` is added to the lmlab.toml in `folder`."""
    if kind == "local":
        root, backend = str(folder / "root"), ""
    else:
        scheme = SCHEMES[kind]
        root = f"{scheme}://{BUCKET}/{secrets.token_hex(6)}"
        (folder / "key").write_text("testing")
        settings = BACKENDS[scheme].format(key=folder / "key")
        backend = f'[backends."{scheme}://"]\nendpoint = "{endpoint}"\nallow_http = true\n{settings}'
    (folder / "lmlab.toml").write_text(f'root = "{root}"\n{backend}{extra}')
    patch.setenv("LMLAB_CONFIG", str(folder / "lmlab.toml"))
    patch.setenv("LMLAB_ROOT", root)
    return StoragePath(root)
