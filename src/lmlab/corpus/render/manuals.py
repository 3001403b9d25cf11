"""Manual pages and dictionaries as a person reads them: roff with its man and mdoc macros, dictd files."""

import re
from collections.abc import Iterator

from lmlab.corpus.render.rendered import Documents, Rendered, decode

ENTRY_BYTES = 16_000
# A protected dot, quotes, and the braces of a condition pass the macros under other characters.
_DOT, _QUOTE, _OPEN, _CLOSE, _APOSTROPHE = "\x00", "\x01", "\x02", "\x03", "\x04"
_PLAIN = {"&": _DOT, "e": "\\", "\\": "\\", "~": " ", "0": " ", "t": "\t", "{": _OPEN, "}": _CLOSE} | {
    character: character for character in " '`-./"
}
_SPECIALS = """aq \x04 dq \x01 lq “ rq ” oq ‘ cq ’ em — en – bu • co © rg ® ha ^ ti ~ rs \\ mu × -> → <- ←
    <= ≤ >= ≥ ba | bv | br | ga ` Eu € +- ± hy - mi - ul _ de ° sc § pl + eq = sl / at @ sh # :a ä :o ö :u ü
    :A Ä :O Ö :U Ü ss ß 'e é `e è ^e ê 'a á `a à ^a â 'o ó ,c ç ~n ñ Fo « Fc » dg † L" “ R" ” C` \x01 C' \x01
    Aq \x04 if ⇔"""
_PAIRS: list[str] = str.split(_SPECIALS)
_SPECIAL = dict(zip(_PAIRS[::2], _PAIRS[1::2], strict=True))
_ESCAPE = re.compile(
    r"\\(?:f(?:\(..|\[[^]]*\]|.)|s(?:[+-]?\d{1,2}|\[[^]]*\])|[mMgkn](?:\(..|\[[^]]*\]|.)|[hvwlLDoNXbBRZ]'[^'\n]*'"
    r"|u?\*?(?:\((..)|\[([^]\n]*)\])|(.|\n))"
)
_COMMENT = re.compile(r"""^[.']?\\["#].*\n|[ \t]*\\".*""", re.MULTILINE)
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')
_ALTERNATE = ("BR", "RB", "BI", "IB", "IR", "RI")
_BREAKS = ("PP", "P", "LP", "Pp", "sp", "HP", "RS", "RE", "Bl", "El", "bp", "ti", "in")
_AROUND = {
    "Op": "[]",
    "Bq": "[]",
    "Dq": "“”",
    "Qq": '""',
    "Sq": "‘’",
    "Ql": "‘’",
    "Pq": "()",
    "Aq": "<>",
    "Brq": "{}",
}
_MARKS = {"Fl": "-", "Nd": "– ", "Ns": "", "Ap": "'", "Oo": "[", "Oc": "]"}
_NAMES = """Ar Pa Em Sy Li Cm Ev Va Vt Fa Ft Fn Fo An Lk Mt Ic Dv Er St Tn Sx In Cd Ad Ms No Nm Xr Ux Bx Nx Fx
    Ox Rv Ex Xo Xc Fc Ta %A %T %B %D %J %N %O %P %R %V"""
_INLINE = frozenset(_NAMES.split()) | _AROUND.keys() | _MARKS.keys()


def man(name: str, data: bytes) -> Documents:
    """A manual page (man or mdoc) as plain text; one that only names another is blank."""
    language = re.search(r"(?:^|/)man/([a-z]{2,3}(?:_[A-Z]{2})?)[./@]", name)
    source = decode(data)
    text = "" if source.lstrip().startswith(".so ") else typeset(source)
    yield Rendered("", language[1] if language else "en", text)


class _Page:
    """The text set so far: finished lines, and the words of the paragraph that is being filled."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.words: list[str] = []
        self.indent, self.is_filled, self.wants_tag, self.headed = "", True, False, 0

    def add(self, text: str) -> None:
        """Text of one input line; the first after `.TP` is a line of its own."""
        if not text.strip() and self.is_filled:
            self.end(1)
        elif self.wants_tag or not self.is_filled:
            self.lines.append((self.indent if not self.wants_tag else "") + text)
            self.indent, self.wants_tag = "    " if self.wants_tag else self.indent, False
        else:
            self.words.append(text.strip())

    def end(self, blank_lines: int = 0) -> None:
        """End the paragraph."""
        if self.words:
            self.lines.append(self.indent + " ".join(self.words))
            self.words = []
        if blank_lines and len(self.lines) > self.headed:
            self.lines.append("")

    def head(self, text: str, indent: str = "") -> None:
        """A heading."""
        self.end(1)
        self.lines.append(indent + text)
        self.indent, self.wants_tag, self.is_filled, self.headed = "", False, True, len(self.lines)


def typeset(source: str) -> str:
    """Roff as lines of text: paragraphs are not wrapped, conditions and macros' definitions are left out."""
    page, own_name = _Page(), ""
    lines = iter(_unescaped(source).split("\n"))
    for line in lines:
        if line[:1] not in (".", "'"):
            page.add(line)
            continue
        name, _, rest = line[1:].strip().partition(" ")
        if name in ("de", "am", "ig", "de1", "am1"):
            end = "." + [*rest.split(), ".", "."][name[:2] != "ig"]
            next((None for skipped in lines if skipped.rstrip() == end), None)
        elif name in ("if", "ie", "el", "while"):
            depth = rest.count(_OPEN) - rest.count(_CLOSE)
            while depth > 0 and (skipped := next(lines, None)) is not None:
                depth += skipped.count(_OPEN) - skipped.count(_CLOSE)
        elif name == "TS":
            _table(page, lines)
        else:
            words = [quoted.replace('""', '"') or bare for quoted, bare in _ARGUMENT.findall(rest)]
            own_name = own_name or (words[0] if name == "Nm" and words else "")
            _macro(page, name, words or ([own_name] if name == "Nm" else []))
    page.end()
    text = "\n".join(page.lines)
    for mark, shown in ((_DOT, ""), (_QUOTE, '"'), (_OPEN, ""), (_CLOSE, ""), (_APOSTROPHE, "'")):
        text = text.replace(mark, shown)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n" if text.strip() else ""


def _macro(page: _Page, name: str, words: list[str]) -> None:
    if name in ("SH", "Sh", "SS", "Ss"):
        page.head(" ".join(words), "  " if name in ("SS", "Ss") else "")
    elif name in _BREAKS:
        page.end(1)
        page.indent = "" if name in ("PP", "P", "LP", "RE", "El") else page.indent
    elif name in ("TP", "TQ", "IP", "It"):
        page.end(name != "TQ")
        page.indent, page.wants_tag = "", name != "IP" or bool(words)
        if name == "IP" and words and len(words[0]) < 3:
            page.words, page.wants_tag = [words[0]], False
        elif words and name in ("IP", "It"):
            page.add(words[0] if name == "IP" else _mdoc(words))
        elif name == "It":
            page.words, page.wants_tag = ["•"], False
    elif name in ("nf", "EX", "Vb", "fi", "EE", "Ve", "Bd", "Ed"):
        page.end()
        page.is_filled = name in ("fi", "EE", "Ve", "Ed")
    elif name == "br":
        page.end()
    elif name in ("B", "I", "SM", "SB", "R", "Dl", "D1", "UR", "MT", "URL", "CW"):
        page.add(" ".join(words))
    elif name in _ALTERNATE:
        page.add("".join(words))
    elif name in _INLINE:
        page.add(_mdoc([name, *words]))


def _mdoc(words: list[str]) -> str:
    """One line of mdoc: each macro puts its mark on what follows it, and asks for no space of its own."""
    text, glue = "", ""
    for i, word in enumerate(words):
        if word in _AROUND and len(words) > 1:
            opened, closed = _AROUND[word]
            return f"{text}{glue}{opened}{_mdoc(words[i + 1 :])}{closed}"
        if word in _MARKS:
            text, glue = text + ("" if word in ("Ns", "Ap", "Oc") else glue) + _MARKS[word], ""
        elif word == "Ar" and i + 1 == len(words):
            text += glue + "file ..."
        elif word not in _INLINE:
            is_section = i > 1 and words[i - 2] == "Xr"
            text += (
                f"({word})" if is_section else word if re.fullmatch(r"[.,;:)\]!?]+", word) else glue + word
            )
            glue = " "
    return text


def _table(page: _Page, lines: Iterator[str]) -> None:
    page.end(1)
    separator, is_data = "\t", False
    for line in lines:
        if line.startswith(".TE"):
            break
        found = re.search(r"tab\s*\(?(.)\)?.*;$", line) if not is_data else None
        separator = found[1] if found else separator
        if is_data and line not in ("_", "=") and not line.startswith("."):
            row = line
            while row.endswith("T{"):
                row = row[:-2] + " ".join(iter(lambda: next(lines, "T}"), "T}"))
            page.lines.append("  ".join(cell.strip() for cell in row.split(separator)))
        is_data = is_data or line.rstrip().endswith(".")
    page.end(1)


def _unescaped(source: str) -> str:
    source = _COMMENT.sub("", source) if '\\"' in source or "\\#" in source else source
    for often in ("\\fB", "\\fI", "\\fR", "\\fP", "\\|", "\\^", "\\/", "\\,"):
        source = source.replace(often, "")
    return _ESCAPE.sub(_character, source.replace("\\-", "-"))


def _character(match: re.Match[str]) -> str:
    special = match[1] or match[2]
    if special is None:
        return _PLAIN.get(match[3] or "", "")
    if re.fullmatch(r"u[0-9A-F]{4,6}", special):
        return chr(int(special[1:], 16))
    return _SPECIAL.get(special, "")


def dictionary(_name: str, data: bytes) -> Documents:
    """A dictd dictionary (.dict, .dict.dz): whole entries, which start at the margin, 16 kB a document."""
    text = decode(data).replace("\r\n", "\n")
    start = 0
    while start < len(text):
        found = re.compile(r"\n(?=\S)").search(text, start + ENTRY_BYTES)
        end = found.end() if found else len(text)
        yield Rendered(str(start), None, text[start:end])
        start = end
