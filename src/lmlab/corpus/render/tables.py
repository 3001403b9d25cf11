"""Tables (WDC, GitTables) and what packages say about themselves."""

import csv
import io
from collections.abc import Iterable, Sequence
from itertools import chain, islice, zip_longest

from lmlab.corpus.archives import MAX_MEMBER_BYTES
from lmlab.corpus.render.rendered import Documents, Rendered, Row, blocks, decode, get, need, scalars

MAX_ROWS, MAX_COLUMNS, MAX_CELL = 1_000, 100, 500
MARKDOWN_COLUMNS = 12
README_CHARACTERS = 100_000


def wdc_table(row: Row) -> Documents:
    """A table of the web (WDC): the title of its page, what stood around it, its rows."""
    columns = need(row, "relation", list)
    is_turned = row.get("tableOrientation") == "VERTICAL"
    lines = columns if is_turned else zip_longest(*columns, fillvalue="")
    title = get(row, "title", "") or get(row, "pageTitle", "")
    text = blocks(title, get(row, "textBeforeTable", ""), laid_out(lines), get(row, "textAfterTable", ""))
    yield Rendered("", None, text, scalars(row, "url", "tableType"))


def table(name: str, data: bytes) -> Documents:
    """A whole CSV, TSV or Parquet file as one table (GitTables): markdown if narrow, else tab-separated."""
    lines: Iterable[Sequence[object]]
    if name.endswith(".parquet"):
        import pyarrow.parquet as pq

        file = pq.ParquetFile(io.BytesIO(data))
        tables = (zip(*batch.to_pydict().values(), strict=True) for batch in file.iter_batches(1000))
        lines = chain([file.schema_arrow.names], chain.from_iterable(tables))
    else:
        csv.field_size_limit(MAX_MEMBER_BYTES)
        lines = csv.reader(io.StringIO(decode(data), newline=""), "excel-tab" if ".tsv" in name else "excel")
    yield Rendered("", None, laid_out(lines))


def laid_out(lines: Iterable[Sequence[object]]) -> str:
    """Rows, the first of them the head, cut to 1,000 rows, 100 columns and 500 characters a cell."""
    lines = iter(lines)
    first = islice(lines, MAX_ROWS + 1)
    kept = [[_cell(cell) for cell in line[:MAX_COLUMNS]] for line in first if any(map(str, line))]
    if not kept:
        return ""
    left = sum(1 for _ in lines)
    more = f"\n({left} more rows)" if left else ""
    if len(kept[0]) > MARKDOWN_COLUMNS:
        return "\n".join("\t".join(cells) for cells in kept) + more + "\n"
    kept = [[cell.replace("|", "\\|") for cell in cells] for cells in kept]
    kept.insert(1, ["---"] * len(kept[0]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in kept) + more + "\n"


def _cell(cell: object) -> str:
    return " ".join(str("" if cell is None else cell).split())[:MAX_CELL]


def npm_package(row: Row) -> Documents:
    """A package.json, or the registry's own document: what it is, what it needs, its readme."""
    latest = get(get(row, "versions", {}), get(get(row, "dist-tags", {}), "latest", ""), row)
    needs = {**get(latest, "dependencies", {}), **get(latest, "peerDependencies", {})}
    about = {**latest, "dependencies": [f"{name} {version}" for name, version in needs.items()]}
    yield _package(about, get(row, "readme", ""), "npm")


def pypi_package(row: Row) -> Documents:
    """The `info` of PyPI's JSON: what it is, what it needs, its description."""
    info = get(row, "info", row)
    about = {**info, "description": info.get("summary"), "dependencies": info.get("requires_dist")}
    yield _package(about, get(info, "description", ""), "PyPI")


def package_metadata(_name: str, data: bytes) -> Documents:
    """A METADATA or PKG-INFO file of a Python package."""
    from email.parser import HeaderParser

    read = HeaderParser().parsestr(decode(data))
    about: Row = {key.lower(): value for key, value in read.items()}
    needs, body = read.get_all("Requires-Dist", []), read.get_payload()
    yield from pypi_package(
        {**about, "requires_dist": needs, "description": body or about.get("description")}
    )


def _package(about: Row, readme: str, registry: str) -> Rendered:
    license_, words = about.get("license"), about.get("keywords") or ""
    fields = {
        "license": license_.get("type") if isinstance(license_, dict) else license_,
        "keywords": ", ".join(words) if isinstance(words, list) else words,
        "dependencies": ", ".join(get(about, "dependencies", [])),
    }
    name, version = need(about, "name", str), get(about, "version", "")
    head = f"# {name} {version} ({registry})\n{get(about, 'description', '')}"
    lines = "\n".join(f"{key}: {value}" for key, value in fields.items() if value)
    text = blocks(head, lines, readme[:README_CHARACTERS])
    return Rendered(f"{name}@{version}", None, text, {"package_license": fields["license"]})
