"""The catalogue: every entry is whole, and nothing can be fetched that is not pinned."""

import subprocess
import sys

import pytest

from lmlab.core.errors import ConfigError
from lmlab.corpus import Files, Source, lookup, names
from lmlab.corpus.catalogue import code_only
from lmlab.corpus.render import RENDERERS

FAMILIES = """
cp/peS2o cp/biodiversity cp/stackv2 finepdfs/eng_Latn finepdfs/ukr_Cyrl finetranslations numinamath-1.5
massive institutional-books dolma4pdfs dolma_code dolma_code_prose eai-code swe-rebench-traces daVinci/ctx
daVinci/env svg sec-edgar hplt-v3 molmo2-cap hermes-traces gh-archive ghalogs
"""


def test_every_family_has_an_entry_and_common_pile_its_thirty_parts():
    assert set(FAMILIES.split()) <= set(names())
    assert sum(name.startswith("cp/") for name in names()) >= 30
    assert sum(name.startswith("finepdfs/") for name in names()) == 19


@pytest.mark.parametrize("name", names())
def test_an_entry_says_how_it_is_read_under_which_terms_and_who_counted(name):
    entry = lookup(name)
    assert entry.renderer in RENDERERS
    assert entry.license
    assert (entry.tokens_billions is None) == (entry.counted == "nobody yet")
    pin, file = ("0" * 64, "a.gz" * ("{file}" in entry.place)) if "://" in entry.place else ("0" * 40, "")
    source = entry.at(pin, file)
    assert source.slices[0].renderer == entry.renderer
    assert pin in (source.sha256 if isinstance(source, Source) else source.place)


@pytest.mark.parametrize("pin", ["main", "", "v1.0"])
def test_without_a_commit_nothing_is_fetched(pin):
    with pytest.raises(ConfigError, match="names no commit"):
        lookup("svg").at(pin)


def test_one_folder_of_a_pool_is_asked_for_and_not_the_pool():
    source = lookup("dolma_code_prose").at("d2bf6ae")
    assert isinstance(source, Files)
    assert source.files == ("dolma_code_prose/**/*.jsonl.zst",)


def test_a_file_of_the_web_needs_its_name_and_digest():
    with pytest.raises(ConfigError, match="Name one file"):
        lookup("hplt-v3").at("0" * 64)
    source = lookup("hplt-v3").at("a" * 64, "eng_Latn/10_1.jsonl.zst")
    assert (source.package, source.file) == (
        "https://data.hplt-project.org/three/sorted/eng_Latn/10_1.jsonl.zst",
        "hplt-v3-10_1.jsonl.zst",
    )


def test_an_unknown_name_gets_its_neighbours():
    with pytest.raises(ConfigError, match=r"'cp/peso' is no collection.*cp/peS2o"):
        lookup("cp/peso")


def test_only_files_in_a_language_are_code():
    assert code_only("", {"extension": "PY"}) == ""
    assert code_only("", {"path": "a/b.csv"}) == "not code: csv"
    assert code_only("", {"path": "LICENSE"}) == "not code: no ending"


def test_naming_sources_loads_nothing_heavy():
    code = "import sys, lmlab.corpus.registry; print({'pyarrow', 'numpy'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
