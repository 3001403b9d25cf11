"""Notations of science, proof, hardware and games, each record as its own community writes it down."""

import re
from collections.abc import Sequence

import orjson

from lmlab.core.config import Json
from lmlab.corpus.render.files import text
from lmlab.corpus.render.rendered import Documents, Rendered, Row, blocks, decode, get, need, scalars

_FEATURE = re.compile(r"^FT   (\w+) +(\S+)((?:\nFT {19}.*)*)", re.MULTILINE)
_CLOCKS = re.compile(r"\s*\{\s*(?:\[%[^\]]*\]\s*)+\}")
_SMILES = ("canonical_smiles", "smiles", "SMILES", "PUBCHEM_SMILES", "PUBCHEM_OPENEYE_CAN_SMILES")


def fasta(row: Row) -> Documents:
    """One FASTA record (UniProt, RNAcentral, RefSeq): the header line, and the sequence as it is wrapped."""
    record = need(row, "record", str)
    if not record.startswith(">"):
        raise ValueError(f"a FASTA record starts with {record[:20]!r}, not with '>'")
    yield Rendered(record[1:].split(maxsplit=1)[0] if record[1:].strip() else "", None, record)


def uniprot(row: Row) -> Documents:
    """One UniProt flat-file entry: a FASTA header, the sequence, then a line for each feature."""
    record = need(row, "record", str)
    fields = {code: re.findall(rf"^{code}   (.*)", record, re.MULTILINE) for code in ("ID", "AC", "DE", "OS")}
    if not fields["ID"] or not fields["AC"]:
        raise ValueError("an UniProt entry has no ID or no AC line")
    accession, entry = fields["AC"][0].split(";")[0], fields["ID"][0].split()[0]
    name = re.search(r"Full=([^;{]+)", " ".join(fields["DE"]))
    head = (
        f">sp|{accession}|{entry} {name[1].strip() if name else ''} OS={' '.join(fields['OS']).rstrip('.')}"
    )
    sequence = re.sub(r" ", "", record.partition("\nSQ ")[2].partition("\n")[2].partition("//")[0])
    features = []
    for kind, place, rest in _FEATURE.findall(record):
        notes = re.findall(r'="([^"]*)', rest.replace("\nFT" + " " * 19, " "))
        features.append(" ".join((kind, place, *notes)))
    listed = "Features:\n" + "\n".join(features) if features else ""
    yield Rendered(accession, None, blocks(f"{head}\n{sequence.strip()}", listed))


def molecules(rows: Sequence[Row]) -> Documents:
    """PubChem and ChEMBL: a SMILES line for each molecule with its other properties after a tab."""
    lines = []
    for row in rows:
        name = next((name for name in _SMILES if row.get(name)), None)
        if name is None:
            raise ValueError(f"none of {', '.join(_SMILES)} is there")
        others = [f"{key}={value}" for key, value in row.items() if key not in (name, "record") and value]
        lines.append("\t".join((need(row, name, str), *others)))
    yield Rendered("", None, "\n".join(lines) + "\n")


def pgn(row: Row) -> Documents:
    """One chess game: the tags that are about the game, its moves without clock times; no players' names."""
    record = need(row, "record", str)
    tags = re.findall(
        r'^\[(?:Event|Result|ECO|Opening|TimeControl|Termination|Variant|FEN) ".*"\]', record, re.MULTILINE
    )
    moves = re.sub(
        r"(?<=\S) \d+\.\.\.(?= )",
        "",
        _CLOCKS.sub("", re.sub(r"^\[.*\]\s*$\n?", "", record, flags=re.MULTILINE)),
    )
    site = re.search(r'^\[Site "(?:.*/)?([^"]*)"\]', record, re.MULTILINE)
    yield Rendered(site[1] if site else "", None, blocks("\n".join(tags), moves.strip()))


def smt_lib(name: str, data: bytes) -> Documents:
    """An SMT-LIB script as it stands; what its author declares satisfiable stands in meta too."""
    (script,) = text(name, data)
    status = re.search(r"\(set-info\s+:status\s+(\w+)\)", script.text)
    logic = re.search(r"\(set-logic\s+(\w+)\)", script.text)
    meta: dict[str, Json] = {"status": status[1] if status else None, "logic": logic[1] if logic else None}
    yield script._replace(meta=meta)


def coq_gym(_name: str, data: bytes) -> Documents:
    """Every proof of a CoqGym file: the goal before each tactic, and the tactic."""
    loaded = orjson.loads(decode(data))
    for proof in need(loaded, "proofs", list):
        goals, lines = need(proof, "goals", dict), []
        for step in need(proof, "steps", list):
            front = get(get(step, "goal_ids", {}), "fg", [])
            goal = goals.get(str(front[0])) if front else None
            if goal is not None:
                known = [f"{' '.join(h['idents'])} : {h['type']}" for h in get(goal, "hypotheses", [])]
                lines.append("\n".join((*known, f"|- {need(goal, 'type', str)}")))
            lines.append("  " + str(step["command"][0]))
        name = need(proof, "name", str)
        yield Rendered(name, None, blocks(f"Proof {name}.", *lines), scalars(loaded, "coq_project"))
