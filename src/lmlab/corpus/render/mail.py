"""Mail as text: subject and date, and the part that a person reads. Addresses and routes are left out."""

import email
import re
from email.message import Message

from lmlab.corpus.render.rendered import Documents, Rendered, blocks, decode

KEPT_HEADERS = ("Subject", "Date", "Organization", "Newsgroups")


def mail(_name: str, data: bytes) -> Documents:
    """A message of RFC 822; an attachment is named only by its type, and HTML is used where no text is."""
    read = email.message_from_bytes(data.lstrip(b"\n"))
    heads = [f"{name}: {_header(read[name])}" for name in KEPT_HEADERS if read[name]]
    parts = [part for part in read.walk() if not part.is_multipart()]
    bodies = [_text(part) for part in parts if part.get_content_type() == "text/plain"]
    if not any(body.strip() for body in bodies):
        bodies = [plain(_text(part)) for part in parts if part.get_content_type() == "text/html"]
    others = [f"[{part.get_content_type()}]" for part in parts if part.get_content_maintype() != "text"]
    yield Rendered("", None, blocks("\n".join(heads), *bodies, "\n".join(others)))


def _text(part: Message) -> str:
    payload = part.get_payload(decode=True)
    data = payload if isinstance(payload, bytes) else b""
    try:
        text = data.decode(part.get_content_charset("utf-8"))
    except (UnicodeDecodeError, LookupError):
        text = decode(data)
    return text.replace("\r\n", "\n")


def _header(value: object) -> str:
    from email.header import decode_header, make_header

    try:
        value = make_header(decode_header(str(value)))
    except (UnicodeDecodeError, LookupError, ValueError):
        value = decode(str(value).encode(errors="replace"))
    return re.sub(r"\s*\n\s*", " ", str(value))


def plain(page: str) -> str:
    """All text of a page, without markup."""
    from resiliparse.extract.html2text import extract_plain_text

    return extract_plain_text(page)
