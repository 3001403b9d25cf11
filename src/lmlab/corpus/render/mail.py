"""Mail as text: subject and date, and the part that a person reads. Addresses and routes are left out."""

import email
import re
from email.header import decode_header, make_header
from email.message import Message

from lmlab.corpus.html import decode_page, extract_text
from lmlab.corpus.render.rendered import Documents, Rendered, blocks, decode

KEPT_HEADERS = ("Subject", "Date", "Organization", "Newsgroups")


def mail(_name: str, data: bytes) -> Documents:
    """A message of RFC 822; an attachment is named only by its type, and HTML is used where no text is."""
    read = email.message_from_bytes(data.lstrip(b"\n"))
    heads = [f"{name}: {_header(read[name])}" for name in KEPT_HEADERS if read[name]]
    parts = [part for part in read.walk() if not part.is_multipart()]
    bodies = [_text(part) for part in parts if part.get_content_type() == "text/plain"]
    if not any(body.strip() for body in bodies):
        pages = [_text(part) for part in parts if part.get_content_type() == "text/html"]
        bodies = [extract_text(page, main_content=False).text for page in pages]
    others = [f"[{part.get_content_type()}]" for part in parts if part.get_content_maintype() != "text"]
    yield Rendered("", None, blocks("\n".join(heads), *bodies, "\n".join(others)))


def _text(part: Message) -> str:
    payload = part.get_payload(decode=True)
    data = payload if isinstance(payload, bytes) else b""
    charset = part.get_content_charset("utf-8")
    try:
        # Who says Latin-1 means what Windows calls by that name.
        return data.decode("cp1252" if charset == "iso-8859-1" else charset)
    except (UnicodeDecodeError, LookupError):
        return decode_page(data)


def _header(value: object) -> str:
    try:
        value = make_header(decode_header(str(value)))
    except (UnicodeDecodeError, LookupError, ValueError):
        value = decode(str(value).encode(errors="replace"))
    return re.sub(r"\s*\n\s*", " ", str(value))
