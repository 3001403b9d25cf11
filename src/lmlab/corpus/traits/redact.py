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
from functools import lru_cache
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
    for at in re.finditer(b"@", text):
        before = text[max(0, at.start() - 64) : at.start()]
        user = before[len(before.rstrip(_USER)) :].lstrip(_USER_MARKS)
        match = _EMAIL.match(text, at.start() - len(user)) if user else None
        if match and _is_somebodys(match):
            yield match.start(), -match.end(), "email"
    for digits in _DIGITS.finditer(text):
        for match in _NUMBER.finditer(text, max(0, digits.start() - 2), digits.end() + 2):
            if _ACCEPTS[str(match.lastgroup)](text, match):
                yield match.start(), -match.end(), str(match.lastgroup)
    for kind, pattern, accepts in _RULES:
        for match in pattern.finditer(text):
            if place := accepts(text, match):
                yield place[0], -place[1], kind


def _plain(kind: str, value: bytes) -> bytes:
    """How two spellings of the same thing are one."""
    if kind in ("phone", "card", "iban", "ssn"):
        return re.sub(rb"[^A-Z0-9]", b"", value)
    return value.lower() if kind == "email" else value


def _any(_text: bytes, match: Match) -> Place | None:
    return match.span()


def _is_somebodys(match: Match) -> bool:
    user, _, domain = match[0].lower().partition(b"@")
    is_file = domain.rpartition(b".")[2] in _FILE_ENDINGS
    return user != b"git" and not is_file and not _RESERVED.search(domain)


def _card(_text: bytes, match: Match) -> Place | None:
    digits = [byte - 48 for byte in match[0] if byte >= 48]
    doubled = sum(sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return None if (sum(digits[-1::-2]) + doubled) % 10 else match.span()


def _phone(_text: bytes, match: Match) -> Place | None:
    digits = len(re.sub(rb"\D", b"", match[0]))
    return match.span() if (10 if match[0].startswith(b"0") else 8) <= digits <= 15 else None


def _address(text: bytes, match: Match) -> Place | None:
    is_version = _VERSION.search(text, max(0, match.start() - 12), match.start())
    return None if is_version or not _is_public(match[0]) else match.span()


@lru_cache(1 << 16)
def _is_public(value: bytes) -> bool:
    """Whether that is an address, of the internet, and not more likely the number of a version."""
    try:
        address = ipaddress.ip_address(value.decode())
    except ValueError:
        return False
    is_version = address.version == 4 and max(address.packed[:3]) < _LARGEST_VERSION
    return address.is_global and not address.is_multicast and not is_version


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
    value, name = match[1], _KEY_NAME.search(text, max(0, match.start() - 24), match.start())
    if not name or _UUID.fullmatch(value) or not re.search(rb"\d", value):
        return None
    bits = -sum(n / len(value) * math.log2(n / len(value)) for n in Counter(value).values())
    return match.span(1) if bits >= _RANDOM_BITS else None


_RESERVED = re.compile(
    rb"(?:^|\.)(?:example(?:\.com|\.org|\.net)?|invalid|test|local|localhost|localdomain)$"
)
_FILE_ENDINGS = frozenset(b"png jpg jpeg gif svg webp css js ts py html htm php txt json xml md".split())
_VERSION = re.compile(rb"(?:\bv|version|ver\.?|release|[=~<>]=|[-_/])\s*[\"']?$", re.IGNORECASE)
_LARGEST_VERSION = 30
_UUID = re.compile(rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_KEY_NAME = re.compile(rb"(?:key|secret|token|passw(?:or)?d|pwd|credentials?)[\"'\]]?\s*$", re.IGNORECASE)
_RANDOM_BITS = 3.5
_USER_MARKS = b".+%=&#$'~-"
_USER = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_" + _USER_MARKS
_EMAIL = re.compile(rb"[^@]+@(?:[A-Za-z\d](?:[A-Za-z\d-]*[A-Za-z\d])?\.)+[A-Za-z]{2,24}\b")
_DIGITS = re.compile(rb"\d[\d .()-]{5,46}\d")
_NUMBER = re.compile(
    rb"""(?x)
    (?P<card>(?<![\w.-])(?:[2-6]\d{3}([ -]?)\d{4}\2\d{4}\2\d{4}|3[47]\d\d([ -]?)\d{6}\3\d{5})(?![\w-]))
    |(?P<ssn>(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4}(?![\w-]))
    |(?P<ip>(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d))
    |(?P<phone>(?<![\w.+/-])(?:\+|00)[1-9](?:[ .-]?\(?\d{1,5}\)?){1,6}[ .-]?\d\d(?!\w|\.\d)
      |(?<![\w.+/(-])(?:1[ .-])?[2-9]\d\d([ .-])[2-9]\d\d\7\d{4}(?![\w-]|\.\d)
      |(?<![\w+/])(?:1[ .-]?)?\([2-9]\d\d\)[ ]?[2-9]\d\d[ .-]\d{4}(?![\w-]|\.\d))"""
)
_ACCEPTS: dict[str, Callable[[bytes, Match], Place | None]] = {
    "card": _card, "ssn": _any, "ip": _address, "phone": _phone,
}  # fmt: skip
_RULES = [
    (kind, re.compile(pattern), accepts)
    for kind, pattern, accepts in (
        ("ip", rb"[23](?<!\w[23])[0-9a-fA-F]{3}:[0-9a-fA-F:]{3,34}(?!\w)", _address),
        ("iban", rb"\b[A-Z]{2}\d\d(?: ?[A-Z\d]{1,4}){3,8}(?!\w)", _iban),
        ("secret", rb"[=:]>?\s*[\"']?(?:Bearer )?([\w+/-]{16,512}=*)(?![\w(.])", _assigned),
        ("key", rb"-----BEGIN ([A-Z ]*PRIVATE KEY)-----[\w+/=\s:,.\\-]{16,9000}?-----END \1-----", _any),
        ("key", rb"eyJ[\w-]{8,4000}\.eyJ[\w-]{8,4000}\.[\w-]{8,1000}(?![\w-])", _any),
        ("key", rb"AIza[\w-]{35}(?![\w-])|(?:AKIA|ASIA)[A-Z0-9]{16}(?!\w)|hf_[A-Za-z0-9]{30,64}(?!\w)", _any),
        ("key", rb"(?:gh[opsur]_[A-Za-z0-9]{36}|github_pat_\w{50}|glpat-[\w-]{20})[\w-]{0,250}", _any),
        ("key", rb"(?:xox[abeprs]-[\w-]{10}|sk-[\w-]{20})[\w-]{0,250}", _any),
    )
]
