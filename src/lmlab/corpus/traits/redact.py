"""Personal data and secrets: where they stand, and what to write instead.

A quick pattern finds where something may stand, closer ones and checksums decide there. The same value has
the same pseudonym within a document and in no other. Private and reserved addresses, versions, hashes and
UUIDs are nobody's. Names and street addresses are not looked for.
"""

import ipaddress
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

SPAN = pa.struct({"start": pa.int64(), "end": pa.int64(), "kind": pa.string(), "replacement": pa.string()})
SPANS = pa.schema([("id", pa.string()), ("spans", pa.list_(SPAN))])
"""Spans of a document in UTF-8 bytes, ascending, apart from each other."""
Match = re.Match[bytes]
Place = tuple[int, int]


def find_spans(table: pa.Table, kinds: tuple[str, ...]) -> pa.Table:
    """The annotation: the spans of these kinds in every document."""
    spans = [spans_of(text.encode(), kinds) for text in table.column("text").to_pylist()]
    return pa.table({"id": table.column("id"), "spans": pa.array(spans, SPANS.field("spans").type)})


def spans_of(text: bytes, kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    """What is personal or secret in a text; of two that overlap the one that begins first, then the longer.

    >>> spans_of(b"to ada@lovelace.org", ("email",))
    [{'start': 3, 'end': 19, 'kind': 'email', 'replacement': '<EMAIL_1>'}]
    """
    spans, names, numbers, last = [], {}, Counter[str](), 0
    for start, minus_end, kind in sorted({place for place in _found(text) if place[2] in kinds}):
        if start < last:
            continue
        last = -minus_end
        value = (kind, _plain(kind, text[start:last]))
        if value not in names:
            numbers[kind] += 1
            names[value] = f"<{kind.upper()}_{numbers[kind]}>"
        spans.append({"start": start, "end": last, "kind": kind, "replacement": names[value]})
    return spans


def _found(text: bytes) -> Iterator[tuple[int, int, str]]:
    """(start, -end, kind) of all that a rule accepts: they sort by start, the longest first."""
    for trigger, before, after, rules in _SCANS:
        whole = [(0, len(text))]
        near = [(m.start() - before, m.end() + after) for m in trigger.finditer(text)] if trigger else whole
        for kind, pattern, accepts in rules:
            for left, right in near:
                for match in pattern.finditer(text, max(0, left), right):
                    if place := accepts(text, match):
                        yield place[0], -place[1], kind


def _plain(kind: str, value: bytes) -> bytes:
    """How two spellings of the same thing are one."""
    if kind in ("phone", "card", "iban", "ssn"):
        return re.sub(rb"[^A-Z0-9]", b"", value)
    return value.lower() if kind == "email" else value


def _any(_text: bytes, match: Match) -> Place | None:
    return match.span()


def _email(_text: bytes, match: Match) -> Place | None:
    user, _, domain = match[0].lower().partition(b"@")
    is_nobodys = user == b"git" or _RESERVED.search(domain) or domain.rpartition(b".")[2] in _FILE_ENDINGS
    return None if is_nobodys else match.span()


def _card(_text: bytes, match: Match) -> Place | None:
    digits = [byte - 48 for byte in match[0] if byte >= 48]
    doubled = sum(sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return None if (sum(digits[-1::-2]) + doubled) % 10 else match.span()


def _phone(_text: bytes, match: Match) -> Place | None:
    return (
        match.span()
        if (10 if match[0][0] == 48 else 8) <= sum(48 <= byte <= 57 for byte in match[0]) <= 15
        else None
    )


def _address(text: bytes, match: Match) -> Place | None:
    """A public address that is no version number."""
    try:
        address = ipaddress.ip_address(match[0].decode())
    except ValueError:
        return None
    is_version = address.version == 4 and (
        max(address.packed[:3]) < _LARGEST_VERSION
        or _VERSION.search(text, max(0, match.start() - 12), match.start())
    )
    return match.span() if address.is_global and not address.is_multicast and not is_version else None


def _iban(_text: bytes, match: Match) -> Place | None:
    """The longest run of its groups with a right checksum: words in capitals may follow it."""
    value = match[0]
    while len(value) >= 15:
        plain = value.replace(b" ", b"").decode()
        if int("".join(str(int(c, 36)) for c in plain[4:] + plain[:4])) % 97 == 1:
            return match.start(), match.start() + len(value)
        value = value.rpartition(b" ")[0]
    return None


def _assigned(text: bytes, match: Match) -> Place | None:
    """A value as random as a key, given to something called one; a UUID or words are none."""
    value, before = match[1], max(0, match.start() - 24)
    if (
        not _KEY_NAME.search(text, before, match.start())
        or _UUID.fullmatch(value)
        or not re.search(rb"\d", value)
    ):
        return None
    bits = -sum(n / len(value) * math.log2(n / len(value)) for n in Counter(value).values())
    return match.span(1) if bits >= _RANDOM_BITS else None


_RESERVED = re.compile(
    rb"(?:^|\.)(?:example\.(?:com|org|net)|example|invalid|test|local|localhost|localdomain)$"
)
_FILE_ENDINGS = frozenset(b"png jpg jpeg gif svg webp css js ts py html htm php txt json xml md".split())
_VERSION = re.compile(rb"(?:\bv|version|ver\.?|release|[=~<>]=|[-_/])\s*[\"']?$", re.IGNORECASE)
_LARGEST_VERSION = 30
_UUID = re.compile(rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_KEY_NAME = re.compile(rb"(?:key|secret|token|passw(?:or)?d|pwd|credentials?)[\"'\]]?\s*$", re.IGNORECASE)
_RANDOM_BITS = 3.5
Rule = tuple[str, re.Pattern[bytes], Callable[[bytes, Match], Place | None]]


def _rule(kind: str, pattern: str, accepts: Callable[[bytes, Match], Place | None] = _any) -> Rule:
    return kind, re.compile(pattern.encode()), accepts


_NUMBERS = [
    _rule("card", r"(?<![\w.-])[2-6]\d{3}([ -]?)\d{4}\1\d{4}\1\d{4}(?![\w-])", _card),
    _rule("card", r"(?<![\w.-])3[47]\d\d([ -]?)\d{6}\1\d{5}(?![\w-])", _card),
    _rule("ssn", r"(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4}(?![\w-])"),
    _rule(
        "phone",
        r"(?<![\w.+/-])(?:\+|00)[1-9]\d{0,2}(?:[ .-]?\(?\d{1,5}\)?){1,5}[ .-]?\d\d(?!\w|\.\d)",
        _phone,
    ),
    _rule("phone", r"(?<![\w.+/(-])(?:1[ .-])?[2-9]\d\d([ .-])[2-9]\d\d\1\d{4}(?![\w-]|\.\d)"),
    _rule("phone", r"(?<![\w+/])(?:1[ .-]?)?\([2-9]\d\d\) ?[2-9]\d\d[ .-]\d{4}(?![\w-]|\.\d)"),
    _rule("ip", r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)", _address),
]
_TEXTS = [
    _rule("ip", r"\b[23][0-9a-fA-F]{3}:[0-9a-fA-F:]{3,34}(?!\w)", _address),
    _rule("iban", r"\b[A-Z]{2}\d\d(?: ?[A-Z\d]{1,4}){3,8}(?!\w)", _iban),
    _rule("secret", r"[=:]>?\s*[\"']?(?:Bearer )?([\w+/-]{16,512}=*)(?![\w(.])", _assigned),
    _rule("key", r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----[\w+/=\s:,.\\-]{16,9000}?-----END \1-----"),
    _rule(
        "key",
        r"(?:A(?:KIA|SIA)[A-Z0-9]{16}|gh[opsur]_[A-Za-z0-9]{36,255}|github_pat_\w{50,255}|glpat-[\w-]{20}"
        r"|xox[abeprs]-[\w-]{10,250}|AIza[\w-]{35}|sk-[\w-]{20,250}|hf_[A-Za-z0-9]{30,}"
        r"|eyJ[\w-]{8,4000}\.eyJ[\w-]{8,4000}\.[\w-]{8,1000})(?![\w-])",
    ),
]
_EMAILS = [
    _rule("email", r"\w[\w.+%-]*@(?:[A-Za-z\d](?:[A-Za-z\d-]*[A-Za-z\d])?\.)+[A-Za-z]{2,24}\b", _email)
]
_SCANS: list[tuple[re.Pattern[bytes] | None, int, int, list[Rule]]] = [
    (re.compile(rb"@"), 64, 255, _EMAILS),
    (re.compile(rb"\d[\d .()-]{5,46}\d"), 2, 2, _NUMBERS),
    (None, 0, 0, _TEXTS),
]
