"""Renderers: what a source holds becomes documents. Pure functions, a module for each family.

There are three kinds, by what they take: the name and bytes of one member, one row, or all rows of a group.
"""

from collections.abc import Callable, Sequence

from lmlab.corpus.render import agents, changes, chat, documents, files, logs, mail, manuals, notation, tables
from lmlab.corpus.render.rendered import Documents as Documents, Rendered as Rendered, Row as Row

Member = Callable[[str, bytes], Documents]
OfRow = Callable[[Row], Documents]
OfRows = Callable[[Sequence[Row]], Documents]

MEMBERS: dict[str, Member] = {
    "coq_gym": notation.coq_gym,
    "dictionary": manuals.dictionary,
    "gettext": files.gettext,
    "ghalogs": logs.ghalogs,
    "html": files.html,
    "icons": files.icons,
    "json": files.json,
    "log": logs.log,
    "mail": mail.mail,
    "man": manuals.man,
    "notebook": files.notebook,
    "package_metadata": tables.metadata_file,
    "smt_lib": notation.smt_lib,
    "swe_agent": agents.swe_agent,
    "table": tables.table,
    "text": files.text,
}
ROWS: dict[str, OfRow] = {
    "captions": documents.captions,
    "code_task": documents.code_task,
    "davinci_env": agents.davinci_env,
    "document": documents.document,
    "eai_taxonomy": documents.eai_taxonomy,
    "execution_trace": agents.execution_trace,
    "fasta": notation.fasta,
    "filing": documents.filing,
    "gh_archive": changes.gh_archive,
    "hplt": documents.hplt,
    "instruction": documents.instruction,
    "massive": chat.massive,
    "messages": chat.messages,
    "npm_package": tables.npm_package,
    "pgn": notation.pgn,
    "pull_request": changes.pull_request,
    "pypi_package": tables.pypi_package,
    "review": changes.review,
    "sharegpt": chat.sharegpt,
    "svg": documents.svg,
    "swe_rebench": agents.swe_rebench,
    "tau_bench": chat.tau_bench,
    "uniprot": notation.uniprot,
    "wdc_table": tables.wdc_table,
}
GROUPS: dict[str, tuple[OfRows, str | int]] = {
    "book": (documents.book, "item_id"),
    "molecules": (notation.molecules, 100),
}
"""The rows of a file that belong together: those that share a field, or so many in a row."""
RENDERERS = {**MEMBERS, **ROWS, **{name: renderer for name, (renderer, _) in GROUPS.items()}}
