"""Renderers: what a source holds becomes documents. Pure functions, a module for each family.

There are three kinds, by what they take: the name and bytes of one member, one row, or all rows of a group.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from lmlab.corpus.render import chat, documents, files, logs, mail, manuals, notation, software, tables
from lmlab.corpus.render.rendered import Documents as Documents, Rendered as Rendered, Row as Row

Member = Callable[[str, bytes], Documents]
OfRow = Callable[[Row], Documents]
OfRows = Callable[[Sequence[Row]], Documents]
Renderer = TypeVar("Renderer", Member, OfRow)


def _named(*renderers: Renderer) -> dict[str, Renderer]:
    return {renderer.__name__: renderer for renderer in renderers}  # type: ignore[attr-defined]  # all functions


MEMBERS: dict[str, Member] = {
    **_named(files.text, files.html, files.gettext, files.icons, files.json, files.notebook, mail.mail),
    **_named(logs.log, logs.ghalogs, manuals.man, manuals.dictionary, notation.smt_lib, notation.coq_gym),
    **_named(software.swe_agent, tables.table, tables.package_metadata),
}
ROWS: dict[str, OfRow] = {
    **_named(chat.chat, chat.massive, documents.document, documents.eai_taxonomy, documents.hplt),
    **_named(documents.captions, documents.svg, documents.instruction, documents.code_task, documents.filing),
    **_named(notation.fasta, notation.uniprot, notation.pgn, software.pull_request, software.review),
    **_named(software.gh_archive, software.execution_trace),
    **_named(tables.wdc_table, tables.npm_package, tables.pypi_package),
}
GROUPS: dict[str, tuple[OfRows, str | int]] = {
    "book": (documents.book, "item_id"),
    "molecules": (notation.molecules, 100),
}
"""The rows of a file that belong together: those that share a field, or so many in a row."""
RENDERERS = {**MEMBERS, **ROWS, **{name: renderer for name, (renderer, _) in GROUPS.items()}}
