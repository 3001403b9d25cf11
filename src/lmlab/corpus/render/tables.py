"""Tables (WDC, GitTables) and what packages say about themselves."""

import csv
import io
from collections.abc import Sequence
from itertools import zip_longest

from lmlab.core.config import Json
from lmlab.corpus.render.rendered import Documents, Rendered, Row, blocks, decode, get, need, scalars

MAX_ROWS, MAX_COLUMNS, MAX_CELL = 1_000, 100, 500
_MARKDOWN_COLUMNS = 12
README_LIMIT = 100_000


def wdc_table(row: Row) -> Documents:
    """A table of the web (WDC): the title of its page, what stood around it, its rows."""
    columns = need(row, "relation", list)
    lines = list(zip_longest(*columns, fillvalue=""))
    if row.get("tableOrientation") == "VERTICAL":
        lines = columns
    title = get(row, "title", "") or get(row, "pageTitle", "")
    around = (get(row, "textBeforeTable", ""), get(row, "textAfterTable", ""))
    text = blocks(title, around[0], laid_out(lines), around[1])
    yield Rendered("", None, text, scalars(row, "url", "tableType"))


def table(name: str, data: bytes) -> Documents:
    """A whole CSV, TSV or Parquet file as one table (GitTables): markdown if narrow, else tab-separated."""
    if name.endswith(".parquet"):
        import pyarrow.parquet as pq

        loaded = pq.read_table(io.BytesIO(data))
        lines: Sequence[Sequence[object]] = [
            loaded.column_names,
            *zip(*loaded.to_pydict().values(), strict=True),
        ]
    else:
        delimiter = "\t" if name.endswith(".tsv") else ","
        lines = list(csv.reader(io.StringIO(decode(data), newline=""), delimiter=delimiter))
    yield Rendered("", None, laid_out(lines))


def laid_out(lines: Sequence[Sequence[object]]) -> str:
    """Rows, the first of them the head, cut to 1,000 rows, 100 columns and 500 characters a cell."""
    kept = [
        [_cell(cell) for cell in line[:MAX_COLUMNS]] for line in lines[: MAX_ROWS + 1] if any(map(str, line))
    ]
    if not kept:
        return ""
    more = f"\n({len(lines) - MAX_ROWS - 1} more rows)" if len(lines) > MAX_ROWS + 1 else ""
    if len(kept[0]) > _MARKDOWN_COLUMNS:
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
    about = {**latest, "readme": row.get("readme"), "dependencies": [f"{k} {v}" for k, v in needs.items()]}
    yield _package(about, "npm")


def pypi_package(row: Row) -> Documents:
    """The `info` of PyPI's JSON: what it is, what it needs, its description."""
    info = get(row, "info", row)
    renamed = {"readme": info.get("description"), "description": info.get("summary")}
    yield _package({**info, **renamed, "dependencies": info.get("requires_dist")}, "PyPI")


def metadata_file(_name: str, data: bytes) -> Documents:
    """A METADATA or PKG-INFO file of a Python package."""
    from email.parser import HeaderParser

    read = HeaderParser().parsestr(decode(data))
    needs = [value for key, value in read.items() if key == "Requires-Dist"]
    about: Row = {**{key.lower(): value for key, value in read.items()}, "requires_dist": needs}
    about["description"] = read.get_payload() or about.get("description")
    yield from pypi_package(about)


def _package(about: Row, registry: str) -> Rendered:
    words = about.get("keywords") or ""
    fields = {
        "license": about["license"].get("type")
        if isinstance(about.get("license"), dict)
        else about.get("license"),
        "keywords": ", ".join(words) if isinstance(words, list) else words,
        "dependencies": ", ".join(get(about, "dependencies", [])),
    }
    name, version = need(about, "name", str), get(about, "version", "")
    lines = "\n".join(f"{key}: {value}" for key, value in fields.items() if value)
    readme = get(about, "readme", "")[:README_LIMIT]
    text = blocks(f"# {name} {version} ({registry})\n{get(about, 'description', '')}", lines, readme)
    meta: dict[str, Json] = {"package_license": fields["license"]}
    return Rendered(f"{name}@{version}", None, text, meta)
