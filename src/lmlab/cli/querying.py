"""`lmlab query`: SQL over the catalog and over files, here, with the engine and the cache of the service."""

import getpass
import json
import sys
from dataclasses import dataclass
from typing import Annotated

import msgspec
import tyro

from lmlab.cli.table import table
from lmlab.core.errors import ConfigError
from lmlab.core.units import format_seconds
from lmlab.storage import choose_root


@dataclass(frozen=True)
class QueryFlags:
    """Run one SELECT over the tables artifacts, edges, transfers and queries, and over artifacts' files.

    Files are named by their artifact: SELECT count(*) FROM '{{corpus/demo@2026.12.01}}/train/*.parquet'.
    """

    sql: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SQL")]
    """One SELECT, in DuckDB's dialect."""
    timeout: float = 60.0
    """Seconds until it is cancelled."""
    csv: bool = False
    """Print CSV, all rows."""
    root: str | None = None
    """Where artifacts live; otherwise LMLAB_ROOT, lmlab.toml, or your data folder."""
    json: bool = False
    """Print JSON."""


def query(flags: QueryFlags, _fields: list[str]) -> int:
    """`lmlab query`."""
    from lmlab.artifacts.catalog import Catalog
    from lmlab.artifacts.query_jobs import SHOWN_ROWS, Ask, Queries

    catalog = Catalog(choose_root(flags.root))
    catalog.refresh()
    queries = Queries(catalog, concurrent=1)
    job = queries.submit(Ask(flags.sql, timeout_s=flags.timeout, user=getpass.getuser()))
    queries.close(wait=True)
    job = queries.get(job.id) or job
    if job.state != "done":
        raise ConfigError(str(job.error))
    if flags.csv:
        for block in queries.file(job, "csv").chunks():
            sys.stdout.buffer.write(block)
        return 0
    rows = queries.page(job, 0, SHOWN_ROWS)
    if flags.json:
        print(json.dumps(msgspec.to_builtins(job) | {"rows": rows}))
        return 0
    print("\n".join(table(rows, [column["name"] for column in job.columns])))
    count, took = job.row_count or 0, format_seconds(job.seconds or 0.0)
    more = f", of which {len(rows)} are shown (--csv prints all)" if count > len(rows) else ""
    print(f"({count} rows{more}; {'as answered before' if job.cached else took})", file=sys.stderr)
    return 0
