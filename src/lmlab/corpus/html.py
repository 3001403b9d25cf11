"""HTML to text: paragraphs, lists, tables and code of a page, without what frames it.

resiliparse (lexbor) parses, prunes by selectors and writes the tree out again; regular expressions and a loop
over block tags make the text, so that no Python code sees every node. Runs no scripts and loads nothing.
"""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

_UNSEEN = (
    "script,style,noscript,template,iframe,object,svg,canvas,audio,video,button,select,textarea,datalist,"
    "noembed,noframes,xmp,head,annotation,annotation-xml"
)
_HIDDEN = (
    '[hidden],[style*="display:none" i],[style*="display: none" i],[style*="visibility:hidden" i],'
    ".sr-only,.visually-hidden,.screen-reader-text"
)
_FRAME = (
    "nav,aside,footer,dialog,[role=navigation],[role=banner],[role=contentinfo],[role=complementary],"
    "[role=search],[role=dialog],[role=alertdialog],[aria-hidden=true],.headerlink,.anchor-link,.navbar,"
    ".navigation,.navheader,.navfooter,.menu,.sidebar,.footer,.breadcrumb,.breadcrumbs,.pagination,.pager,"
    ".related,.share,.social,.newsletter,.advertisement,.skip-link,#footer,#sidebar,#nav,#navigation,#menu,"
    '[class*="cookie-b" i],[class*="cookie-c" i],[class*="cookie-n" i],[class*="cookieconsent" i],'
    "#cookie-banner,#cookie-notice,#onetrust-consent-sdk"
)
_WRAPPERS = 64
"""Elements that fit, but hold too much to be a frame: so many are looked at, each costs a walk through it."""
_MAIN_SHARE = 0.25
"""Of the page's text that a <main> or <article> must hold to be taken for the whole content."""
_LINKED, _LINK_RUN, _LINK_CHARS = 0.7, 3, 120
"""So many short pieces in a row, of which so much is link, are a menu."""
_DEEPEST = 8
"""Lists are indented no further."""

_LINES = "address|caption|center|div|dt|fieldset|form|legend|option|summary|tbody|tfoot|thead"
_PARAGRAPHS = (
    "article|aside|blockquote|details|dir|dl|figcaption|figure|footer|h1|h2|h3|h4|h5|h6|header|hr|main|menu|nav|"
    "p|section|table"
)
_BLOCKS = f"{_LINES}|{_PARAGRAPHS}|br|dd|li|ol|pre|td|th|tr|ul"
_GAPS = {"/td": "", "/th": ""}
for _names, _gap in ((_LINES, "\n"), (_PARAGRAPHS, "\n\n")):
    _GAPS |= {side + name: _gap for name in _names.split("|") for side in ("", "/")}
_INLINE = re.compile(rf"<!--.*?-->|<(?!/?(?:{_BLOCKS}|a)[ >])[^>]*>", re.DOTALL)
_BLOCK = re.compile(rf"<(/?(?:{_BLOCKS}))(?: [^>]*)?>")
_LINK = re.compile(r"<a(?: [^>]*)?>")
_LAST = (("\x02", ""), ("\x03", ""), ("\xad", ""), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&"))
"""Marks of links and soft hyphens go; a tree that is written out has no other entities in its text."""
_UTF16, _BROKEN = (b"\xff\xfe", b"\xfe\xff"), 0.1
_SUPERSETS = {"gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949"}
"""What browsers read under these names: https://encoding.spec.whatwg.org/#names-and-labels."""


@dataclass(frozen=True)
class Page:
    """What is read of a page."""

    title: str
    """As a browser's tab shows it; empty if there is none."""
    language: str | None
    """Tag that the root element names."""
    url: str | None
    """The canonical address that the page names, or else the one it was read from."""
    text: str
    """Paragraphs parted by blank lines, items and rows by line ends, cells by tabs; code as it stands."""


def extract_text(
    html: bytes | str, *, url: str | None = None, charset: str | None = None, main_content: bool = True
) -> Page:
    """The text of a page; `main_content` leaves out menus, banners and footers.

    `charset` is what the server said of the bytes. Never fails: a page without text has an empty one.

    >>> extract_text("<nav>Home</nav><h1>Whales</h1><p>A <b>few</b> words").text
    'Whales\\n\\nA few words'
    """
    from resiliparse.parse.html import HTMLTree

    # Half a surrogate pair in a string is no text.
    page = html.encode(errors="replace") if isinstance(html, str) else html
    tree = HTMLTree.parse(decode_page(page, charset))
    document: Any = tree.document
    root = document.query_selector("html")
    canonical = document.query_selector("link[rel=canonical]")
    href = canonical.getattr("href") if canonical else None
    return Page(
        title=" ".join((tree.title or "").split()),
        language=root.getattr("lang") or root.getattr("xml:lang") or None,
        url=urljoin(url or "", href) if href else url,
        text=_text_of(tree.body or root, main_content),
    )


def decode_page(data: bytes, charset: str | None = None) -> str:
    """Bytes of a page as text: as UTF-8 if they are that but for a few, else as server or page declare.

    Most pages that declare another charset and are UTF-8 are mislabelled. Latin-1 is what servers say that
    were never told, so the page's own word or a guess from its first 128 KiB goes before it.
    """
    from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

    name = map_encoding_to_html5(charset or "", fallback_utf8=False)
    if not data.startswith(_UTF16) and b"\x1b$" not in data and not (name or "").startswith("utf-16"):
        text = data.decode("utf-8-sig", "replace")
        # A character of several bytes makes the text shorter than its bytes, a broken one does not.
        if (broken := text.count("\ufffd")) == 0 or broken < (len(data) - len(text)) * _BROKEN:
            return text
    if name in (None, "utf-8", "cp1252"):
        name = detect_encoding(data, from_html_meta=True)
    if name in (None, "utf-8"):
        name = detect_encoding(data) or "cp1252"
    return data.decode(_SUPERSETS.get(name, name), "replace").removeprefix("\ufeff")


def _text_of(root: Any, main_content: bool) -> str:
    for node in root.query_selector_all(_UNSEEN).values():
        node.decompose()
    _prune(root, f"{_HIDDEN},{_FRAME}" if main_content else _HIDDEN)
    root = _main(root) if main_content else root
    markup = root.html.replace("&nbsp;", " ").replace("\x02", "").replace("\x03", "")
    pieces = _pieces(_LINK.sub("\x02", _INLINE.sub("", markup)).replace("</a>", "\x03"))
    if main_content:
        pieces = _without_menus(pieces)
    text = "".join(gap + piece for gap, piece in pieces).strip("\n\t")
    for old, new in _LAST:
        text = text.replace(old, new)
    return text


def _prune(root: Any, selectors: str) -> None:
    """Remove what fits, but nothing that holds half of the text: that is a wrapper with an unlucky name."""
    limit, wrappers = _size(root) / 2, 0
    # values(): iterating the list itself takes time with its square (resiliparse 2.0.1: 4,000 nodes in 26 s).
    for node in root.query_selector_all(selectors).values():
        if _size(node) <= limit:
            node.decompose()
            continue
        wrappers += 1
        if wrappers == _WRAPPERS:
            return


def _main(root: Any) -> Any:
    """The element that says it is the main content, if it holds enough to be it, and the page's heading."""
    for selector in ("main,[role=main]", "article"):
        found = root.query_selector_all(selector)
        if len(found) == 1 and _size(found[0]) > _size(root) * _MAIN_SHARE:
            has_heading = found[0].query_selector("h1") or not root.query_selector("h1")
            return found[0] if has_heading else root
    return root


def _size(node: Any) -> int:
    return len(node.text or "")


def _pieces(markup: str) -> list[tuple[str, str]]:
    """Lines and cells of text, each with what parts it from the one before."""
    tokens = _BLOCK.split(markup)
    layout = _Layout()
    out: list[tuple[str, str]] = []
    for tag, raw in zip(["", *tokens[1::2]], tokens[::2], strict=True):
        if tag:
            layout.enter(tag)
        piece = raw.strip("\n") if layout.preformatted else " ".join(raw.split())
        if piece and not piece.isspace():
            out.append(layout.place(piece))
    return out


class _Layout:
    """Where the next piece of text goes: the list, table row and code block it stands in."""

    def __init__(self) -> None:
        self.preformatted = 0
        self._gap, self._marker, self._between_cells = "", "", ""
        self._is_fresh = False  # In an item or cell without text yet, where breaks don't count.
        self._lists: list[int] = []  # For each list around: the number of its last item, -1 if it has none.

    def place(self, piece: str) -> tuple[str, str]:
        """What parts this piece from the one before, and the piece with the mark of its item."""
        if not self._is_fresh and "\n" in self._gap:
            self._between_cells = "\n"
        placed = self._gap, self._marker + piece
        self._gap, self._marker, self._is_fresh = "", "", False
        return placed

    def enter(self, tag: str) -> None:
        """Take note of a block tag; an end tag begins with a slash."""
        gap = _GAPS.get(tag)
        self._part(self._begin(tag) if gap is None else gap)

    def _part(self, gap: str) -> None:
        if not self._is_fresh and len(gap) > self._gap.count("\n"):
            self._gap = gap

    def _begin(self, tag: str) -> str:
        """Take note of a tag that does more than to part, and tell how it parts."""
        if tag in ("/li", "/tr", "/dd"):
            self._gap, self._marker, self._is_fresh = "\n", "", False
        elif tag in ("td", "th"):
            self._gap = (self._gap if self._is_fresh else "") + self._between_cells
            self._between_cells, self._is_fresh = self._between_cells or "\t", True
        elif tag in ("li", "tr", "dd"):
            self._part("\n")
            self._is_fresh = True
            self._marker = self._mark() if tag == "li" else ""
            self._between_cells = "" if tag == "tr" else self._between_cells
        elif tag in ("ul", "ol"):
            self._lists.append(0 if tag == "ol" else -1)
            return "\n" if len(self._lists) > 1 else "\n\n"
        elif tag in ("/ul", "/ol"):
            self._lists.pop()
            return "\n" if self._lists else "\n\n"
        elif tag == "br" and not self._is_fresh and (self.preformatted or len(self._gap) < 2):
            self._gap += "\n"
        elif tag in ("pre", "/pre"):
            self.preformatted += 1 if tag == "pre" else -1
            return "\n\n"
        return ""

    def _mark(self) -> str:
        indent = "  " * (min(len(self._lists), _DEEPEST) - 1)
        if not self._lists or self._lists[-1] < 0:
            return indent + "- "
        self._lists[-1] += 1
        return f"{indent}{self._lists[-1]}. "


def _without_menus(pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without runs of short pieces that are mostly link: what is left of a page of links is its heading."""
    kept: list[tuple[str, str]] = []
    run: list[tuple[str, str]] = []
    for piece in [*pieces, ("", "")]:
        if _is_link(piece[1]):
            run.append(piece)
            continue
        kept += [*(run if len(run) < _LINK_RUN else []), piece]
        run = []
    return kept


def _is_link(text: str) -> bool:
    linked = sum(len(part.partition("\x03")[0]) for part in text.split("\x02")[1:])
    return 0 < len(text) < _LINK_CHARS and linked > _LINKED * len(text.lstrip("-0123456789. "))
