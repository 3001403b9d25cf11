"""Notations of science, proof, hardware and games, each record as its own community writes it down."""

import re
from collections.abc import Sequence

import orjson

from lmlab.core.config import Json
from lmlab.corpus.render.files import text
from lmlab.corpus.render.rendered import Documents, Rendered, Row, blocks, get, need, scalars

SMILES = ("canonical_smiles", "smiles", "SMILES", "PUBCHEM_SMILES", "PUBCHEM_OPENEYE_CAN_SMILES")
_FEATURE = re.compile(r"^FT   (\w+) +(\S+)((?:\nFT {19}.*)*)", re.MULTILINE)
_GAME_TAG = re.compile(
    r'^\[(?:Event|Result|ECO|Opening|TimeControl|Termination|Variant|FEN) ".*"\]', re.MULTILINE
)
_CLOCK = re.compile(r"\s{0,2}\{\s?(?:\[%[^\]]{0,80}\]\s?){1,8}\}(?: \d{1,4}\.\.\.(?= ))?")


def fasta(row: Row) -> Documents:
    """One FASTA record (UniProt, RNAcentral, RefSeq): the header line, and the sequence as it is wrapped."""
    record = need(row, "record", str)
    if not record.startswith(">"):
        raise ValueError(f"a FASTA record starts with {record[:20]!r}, not with '>'")
    yield Rendered(record[1:].partition("\n")[0].partition(" ")[0], None, record)


def uniprot(row: Row) -> Documents:
    """One UniProt flat-file entry: a FASTA header, the sequence, then a line for each feature."""
    record = need(row, "record", str)
    fields = {
        code: " ".join(re.findall(rf"^{code}   (.*)", record, re.MULTILINE))
        for code in ("ID", "AC", "DE", "OS")
    }
    if not fields["ID"] or not fields["AC"]:
        raise ValueError("an UniProt entry has no ID or no AC line")
    accession, name = fields["AC"].split(";")[0], re.search(r"Full=([^;{]+)", fields["DE"])
    title = f"{name[1].strip() if name else ''} OS={fields['OS'].rstrip('.')}"
    sequence = record.partition("\nSQ ")[2].partition("\n")[2].partition("//")[0].replace(" ", "").strip()
    lines = []
    for kind, place, rest in _FEATURE.findall(record):
        notes = re.findall(r'="([^"]*)', rest.replace("\nFT" + " " * 19, " "))
        lines.append(" ".join((kind, place, *notes)))
    features = "\n".join(("Features:", *lines)) if lines else ""
    yield Rendered(
        accession, None, blocks(f">sp|{accession}|{fields['ID'].split()[0]} {title}\n{sequence}", features)
    )


def molecules(rows: Sequence[Row]) -> Documents:
    """PubChem and ChEMBL: a SMILES line for each molecule with its other properties after a tab."""
    lines = []
    for row in rows:
        name = next((name for name in SMILES if row.get(name)), SMILES[0])
        others = [f"{key}={value}" for key, value in row.items() if key != name and value]
        lines.append("\t".join((need(row, name, str), *others)))
    yield Rendered("", None, "\n".join(lines) + "\n")


def pgn(row: Row) -> Documents:
    """One chess game: the tags that are about the game, its moves without clock times; no players' names."""
    record = need(row, "record", str)
    moves = _CLOCK.sub("", re.sub(r"^\[.*\]\s*$\n?", "", record, flags=re.MULTILINE))
    site = re.search(r'^\[Site "(?:.*/)?([^"]*)"\]', record, re.MULTILINE)
    yield Rendered(site[1] if site else "", None, blocks("\n".join(_GAME_TAG.findall(record)), moves.strip()))


def smt_lib(name: str, data: bytes) -> Documents:
    """An SMT-LIB script as it stands; its logic, and whether it is satisfiable, stand in meta too."""
    (script,) = text(name, data)
    meta: dict[str, Json] = {}
    for key, pattern in (("status", r"\(set-info\s+:status\s+(\w+)"), ("logic", r"\(set-logic\s+(\w+)")):
        found = re.search(pattern, script.text)
        meta[key] = found[1] if found else None
    yield script._replace(meta=meta)


def coq_gym(_name: str, data: bytes) -> Documents:
    """Every proof of a CoqGym file: the goal before each tactic, and the tactic."""
    loaded = orjson.loads(data)
    for proof in need(loaded, "proofs", list):
        lines = []
        for step in need(proof, "steps", list):
            front = get(get(step, "goal_ids", {}), "fg", [])
            goal = proof["goals"].get(str(front[0])) if front else None
            if goal is not None:
                known = [f"{' '.join(h['idents'])} : {h['type']}" for h in get(goal, "hypotheses", [])]
                lines.append("\n".join((*known, f"|- {need(goal, 'type', str)}")))
            lines.append("  " + str(step["command"][0]))
        name = need(proof, "name", str)
        yield Rendered(name, None, blocks(f"Proof {name}.", *lines), scalars(loaded, "coq_project"))
