"""The collections that the lab knows by name: where they lie, what becomes of a row, about how many tokens.

An entry is thin: patterns scoped to folders, and a renderer. It holds no revision, for what is published
changes: who fetches pins one (`entry.at(revision)`), and that is part of the recipe.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Any

from lmlab.core.errors import ConfigError
from lmlab.corpus.registry import AnySource, Files, Slice, Source

_CODE = """
asm bash c cc cl clj cpp cs css cu cxx d dart el erl ex f f90 fs go groovy h hpp hs html java jl js jsx kt
lean lisp lua m ml mli mm nim pas php pl pm proto ps1 py pyx r rb rs scala scm sh sol sql sv swift tcl tex
ts tsx v vb vhd vue zig
"""
CODE = frozenset(_CODE.split())
_MARIN = "Marin's registry, Llama 3 tokens, 2026"
_COUNTS = {"M": _MARIN, "P": "the publisher, as announced in 2026", "-": "nobody yet"}


@dataclass(frozen=True)
class Entry:
    """One collection."""

    name: str
    """`family` or `family/part`."""
    place: str
    """`owner/name` of a data set on the hub, or an https:// address with {file} for the name of one file."""
    files: tuple[str, ...]
    """Patterns of its files; of one from the web, of the members of that archive."""
    renderer: str
    """What extract makes of a row; normalizing comes after it, as everywhere."""
    license: str
    """As the publisher names it; "see card" where documents have their own."""
    tokens_billions: float | None
    """Rough, for a first weight; None where nobody counted."""
    counted: str
    """Who counted, with what and when."""

    def at(self, pin: str, file: str = "") -> AnySource:
        """The source to fetch: `pin` is a commit of the repository; of one `file` of the web its sha256.

        >>> lookup("cp/peps").at("5821709").place
        'hf://datasets/common-pile/python_enhancement_proposals_filtered@5821709'
        """
        name, is_page = self.name.replace("/", "-"), self.place.startswith("https://")
        pieces = (Slice(name, self.files if is_page else ("*",), self.renderer),)
        if not is_page:
            return Files(name, f"hf://datasets/{self.place}@{pin}", self.license, pieces, self.files)
        if ("{file}" in self.place) != bool(file):
            raise ConfigError(
                f"{self.name} is {self.place}: file={file!r} does not fit. Name one file of it."
            )
        address = self.place.format(file=file)
        kept = f"{name}-{address.rpartition('/')[2]}"
        return Source("web", address, "as pinned", kept, pin, self.license, pieces)


def lookup(name: str) -> Entry:
    """The entry of this name. Raises ConfigError with the nearest names for another."""
    if name in ENTRIES:
        return ENTRIES[name]
    near = get_close_matches(name, ENTRIES, n=3) or sorted(ENTRIES)[:3]
    raise ConfigError(f"{name!r} is no collection of the catalogue. Did you mean {', '.join(near)}?")


def names() -> tuple[str, ...]:
    """All collections, sorted."""
    return tuple(sorted(ENTRIES))


def code_only(_text: str, meta: dict[str, Any]) -> str:
    """A rule for `filter_documents`: keeps files whose ending is that of a language (The Stack v2).

    >>> code_only("", {"extension": "rs"}), code_only("", {"path": "logo.bin"})
    ('', 'not code: bin')
    """
    ending = str(meta.get("extension") or PurePosixPath(str(meta.get("path") or "")).suffix).lstrip(".")
    return "" if ending.lower() in CODE else f"not code: {ending or 'no ending'}"


_ROWS = "**/*.{jsonl,json,jsonl.gz,json.gz,jsonl.zst,json.zst,parquet}"
_COMMON_PILE = """
arxiv_abstracts 0.54, arxiv_papers 6.63, caselaw_access_project 17.55, cccc -, data_provenance_initiative
0.82, doab 2.93, foodista 0.02, github_archive 10.26, library_of_congress 8.06, libretexts 0.08, news 0.05,
oercommons 0.01, peS2o 40.74, pre_1929_books 10.57, pressbooks 0.13, project_gutenberg 4.91,
public_domain_review 0.002, pubmed 38.08, python_enhancement_proposals 0.003, regulations 1.28,
stackexchange 21.89, stackv2_edu -, stackv2_html -, ubuntu_irc 1.76, uk_hansard 2.13, usgpo 7.78, uspto
142.41, wikimedia -, wikiteam 2.97, youtube 4.07"""
_FINEPDFS = """
eng_Latn 1186.47, arb_Arab 29.72, ces_Latn 29.83, cmn_Hani 32.97, deu_Latn 177.1, fra_Latn 164.75, hun_Latn
37.44, ind_Latn 20.32, ita_Latn 94.79, jpn_Jpan 115.87, nld_Latn 46.97, pol_Latn 54.4, por_Latn 94.69,
ron_Latn 22.61, rus_Cyrl 146.95, spa_Latn 216.74, swe_Latn 25.34, tha_Thai 17.4, ukr_Cyrl 25.53"""
# name | place | patterns | renderer | license | billions of tokens | who counted
_OTHERS = """
cp/biodiversity|common-pile/biodiversity_heritage_library_filtered|*.json.gz|book|public domain|8.6|M
cp/stackv2|common-pile/stackv2|**/*.json.gz|document|see card|352.76|M
daVinci/ctx|GAIR/daVinci-Dev|ctx-native/llm_enhanced_prs/*.parquet|pull_request|see card|57.57|M
daVinci/env|GAIR/daVinci-Dev|env-native.jsonl|davinci_env|see card|2.58|M
dolma4pdfs|allenai/dolma3.5_pool|dolma4pdfs/{olmo-crawled-pdfs,s2orc}*/**/*.jsonl.zst|document|ODC-BY|1804.0|M
dolma_code|allenai/dolma3.5_pool|dolma_code/**/*.jsonl.zst|document|ODC-BY|-|-
dolma_code_prose|allenai/dolma3.5_pool|dolma_code_prose/**/*.jsonl.zst|document|ODC-BY|65.54|M
eai-code|EssentialAI/eai-taxonomy-code-w-dclm|**/*.parquet|eai_taxonomy|see card|591.9|M
finetranslations|HuggingFaceFW/finetranslations|data/**/*.parquet|document|ODC-BY|3040|M
gh-archive|https://data.gharchive.org/{file}|*|gh_archive|see GitHub's terms|-|-
ghalogs|https://zenodo.org/records/14796970/files/{file}|*|ghalogs|see record|253.34|M
hermes-traces|lambda/hermes-agent-reasoning-traces|**/*.parquet|sharegpt|Apache-2.0|-|-
hplt-v3|https://data.hplt-project.org/three/sorted/{file}|*|hplt|CC0-1.0|450|P
institutional-books|institutional/institutional-books-1.0|data/*.parquet|document|see card|203.63|M
massive|https://amazon-massive-nlu-dataset.s3.amazonaws.com/amazon-massive-dataset-1.1.tar.gz|*.jsonl|massive|CC-BY-4.0|11.39|M
molmo2-cap|allenai/Molmo2-Cap|**/*.parquet|captions|ODC-BY|0.36|M
numinamath-1.5|AI-MO/NuminaMath-1.5|data/*.parquet|instruction|Apache-2.0|0.4|M
numinamath-tir|AI-MO/NuminaMath-TIR|data/*.parquet|messages|Apache-2.0|0.08|M
sec-edgar|TeraflopAI/SEC-EDGAR|{10-K,10-Q,8-K,20-F,S-1,S-8,144,3,4,5}/*.parquet|filing|public domain|43.7|P
svg|nyuuzyou/svgfind|svgfind-CREATIVECOMMONS_*.jsonl.zst|svg|CC-BY-4.0|8.95|M
swe-rebench-traces|marin-community/swe-rebench-v2-CodeWorldModeling|data/*.parquet|document|see card|182.6|M
"""


def _table() -> dict[str, Entry]:
    found = []
    for text, family, place, pattern in (
        (_COMMON_PILE, "cp", "common-pile/{}_filtered", _ROWS),
        (_FINEPDFS, "finepdfs", "HuggingFaceFW/finepdfs", "data/{}/train/*.parquet"),
    ):
        short = {"python_enhancement_proposals": "peps", "caselaw_access_project": "caselaw"}
        terms = "see card" if family == "cp" else "ODC-BY"
        for part, tokens in (item.split() for item in text.split(",")):
            row = (
                f"{family}/{short.get(part, part)}",
                place.format(part),
                pattern.replace("{}", part),
                "document",
            )
            found.append((*row, terms, tokens, "-" if tokens == "-" else "M"))
    found += [tuple(line.split("|")) for line in _OTHERS.strip().splitlines()]
    return {
        name: Entry(name, place, (files,), render, terms, None if n == "-" else float(n), _COUNTS[who])
        for name, place, files, render, terms, n, who in found
    }


ENTRIES = _table()
