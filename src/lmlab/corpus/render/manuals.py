"""Manual pages and dictionaries as a person reads them: roff with its man and mdoc macros, dictd files."""

import re
from collections.abc import Iterator

from lmlab.corpus.render.rendered import Documents, Rendered, decode

ENTRY_CHARACTERS = 16_000
# A protected dot, quotes, and the braces of a condition pass the macros under other characters.
_SHOWN = {"\x00": "", "\x01": '"', "\x02": "", "\x03": "", "\x04": "'"}
_DOT, _QUOTE, _OPEN, _CLOSE, _APOSTROPHE = _SHOWN
_PLAIN = {"&": _DOT, "e": "\\", "\\": "\\", "~": " ", "0": " ", "t": "\t", "{": _OPEN, "}": _CLOSE}
_PLAIN |= {character: character for character in " '`-./"}
_SPECIALS = """aq \x04 dq \x01 lq “ rq ” oq ‘ cq ’ em — en – bu • co © rg ® ha ^ ti ~ rs \\ mu × -> → <- ←
    <= ≤ >= ≥ ba | bv | br | ga ` Eu € +- ± hy - mi - ul _ de ° sc § pl + eq = sl / at @ sh # :a ä :o ö :u ü
    :A Ä :O Ö :U Ü ss ß 'e é `e è ^e ê 'a á `a à ^a â 'o ó ,c ç ~n ñ Fo « Fc » dg † L" “ R" ” C` \x01 C' \x01
    Aq \x04 if ⇔"""
_PAIRS: list[str] = str.split(_SPECIALS)
_SPECIAL = dict(zip(_PAIRS[::2], _PAIRS[1::2], strict=True))
# Names and arguments have a greatest length: a page of "\[" alone would take time by the square of it.
_ESCAPE = re.compile(
    r"\\(?:[fmMgkn](?:\(..|\[[^]\n]{0,40}\]|.)|s(?:[+-]?\d{1,2}|\[[^]\n]{0,40}\])|[hvwlLDoNXbBRZ]'[^'\n]{0,200}'"
    r"|\*?(?:\((..)|\[([^]\n]{1,40})\])|(.|\n))"
)
_COMMENT = re.compile(r"""^[.']?\\["#].*\n|[ \t]*\\".*""", re.MULTILINE)
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')
# Brackets around the rest of an mdoc line, marks before a word, and macros of which only the words are kept.
_AROUND = {"Op": "[]", "Bq": "[]", "Pq": "()", "Aq": "<>", "Brq": "{}"}
_AROUND |= {"Dq": "“”", "Qq": '""', "Sq": "‘’", "Ql": "‘’"}
_MARKS = {"Fl": "-", "Nd": "– ", "Ns": "", "Ap": "'", "Oo": "[", "Oc": "]"}
_NAMES = """Ar Pa Em Sy Li Cm Ev Va Vt Fa Ft Fn Fo An Lk Mt Ic Dv Er St Tn Sx In Cd Ad Ms No Nm Xr Ux Bx Nx Fx
    Ox Rv Ex Xo Xc Fc Ta %A %T %B %D %J %N %O %P %R %V"""
_INLINE = {*_NAMES.split(), *_AROUND, *_MARKS}


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
        elif self.wants_tag:
            self.lines.append(text)
            self.indent, self.wants_tag = "    ", False
        elif self.is_filled:
            self.words.append(text.strip())
        else:
            self.lines.append(self.indent + text)

    def end(self, blank_lines: int = 0) -> None:
        """End the paragraph."""
        if self.words:
            self.lines.append(self.indent + " ".join(self.words))
            self.words = []
        if blank_lines and len(self.lines) > self.headed:
            self.lines.append("")

    def head(self, text: str) -> None:
        """A heading."""
        self.end(1)
        self.lines.append(text)
        self.indent, self.is_filled, self.wants_tag, self.headed = "", True, False, len(self.lines)


def typeset(source: str) -> str:
    """Roff as lines of text: paragraphs are not wrapped, conditions and macros' definitions are left out."""
    page, own_name = _Page(), ""
    lines = iter(_unescaped(source).split("\n"))
    for line in lines:
        name, _, rest = line[1:].strip().partition(" ")
        if line[:1] not in (".", "'"):
            page.add(line)
        elif name in ("de", "am", "ig", "de1", "am1"):
            end = "." + [*rest.split(), ".", "."][name != "ig"]
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
    for mark, shown in _SHOWN.items():
        text = text.replace(mark, shown)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n" if text.strip() else ""


def _macro(page: _Page, name: str, words: list[str]) -> None:
    match name:
        case "SH" | "Sh" | "SS" | "Ss":
            page.head(("  " if name in ("SS", "Ss") else "") + " ".join(words))
        case "PP" | "P" | "LP" | "RE" | "El" | "Pp" | "sp" | "HP" | "RS" | "Bl" | "bp" | "ti" | "in":
            page.end(1)
            page.indent = "" if name in ("PP", "P", "LP", "RE", "El") else page.indent
        case "TP" | "TQ":
            page.end(name != "TQ")
            page.indent, page.wants_tag = "", True
        case "IP" | "It":
            page.end(1)
            tag = _mdoc(words) if name == "It" else "".join(words[:1])
            page.indent, page.wants_tag = "", len(tag) > 2 or (name == "It" and tag != "")
            if page.wants_tag:
                page.add(tag)
            elif tag or name == "It":
                page.words = [tag or "•"]
        case "nf" | "EX" | "Vb" | "Bd" | "fi" | "EE" | "Ve" | "Ed":
            page.end()
            page.is_filled = name in ("fi", "EE", "Ve", "Ed")
        case "br":
            page.end()
        case "B" | "I" | "SM" | "SB" | "R" | "Dl" | "D1" | "UR" | "MT" | "URL" | "CW":
            page.add(" ".join(words))
        case "BR" | "RB" | "BI" | "IB" | "IR" | "RI":
            page.add("".join(words))
        case _ if name in _INLINE:
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
        elif word not in _INLINE or (word == "Ar" and i + 1 == len(words)):
            is_close = re.fullmatch(r"[.,;:)\]!?]+", word)
            shown = "file ..." if word == "Ar" else word
            text += f"({word})" if i > 1 and words[i - 2] == "Xr" else ("" if is_close else glue) + shown
            glue = " "
    return text


def _table(page: _Page, lines: Iterator[str]) -> None:
    page.end(1)
    separator, is_data = "\t", False
    for line in lines:
        row = line
        if row.startswith(".TE"):
            break
        if is_data and row not in ("_", "=") and not row.startswith("."):
            while row.endswith("T{"):
                row = row[:-2] + " ".join(iter(lambda: next(lines, "T}"), "T}"))
            page.lines.append("  ".join(cell.strip() for cell in row.split(separator)))
        elif not is_data and (found := re.search(r"tab\s*\(?(.)\)?.*;$", row)):
            separator = found[1]
        is_data = is_data or row.rstrip().endswith(".")
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
    is_code = re.fullmatch(r"u[0-9A-F]{4,5}", special)
    return chr(int(special[1:], 16)) if is_code else _SPECIAL.get(special, "")


def dictionary(_name: str, data: bytes) -> Documents:
    """A dictd dictionary (.dict, .dict.dz): whole entries, which start at the margin, 16 kB a document."""
    text, start = decode(data).replace("\r\n", "\n"), 0
    entry = re.compile(r"\n(?=\S)")
    while start < len(text):
        found = entry.search(text, start + ENTRY_CHARACTERS)
        end = found.end() if found else len(text)
        yield Rendered(str(start), None, text[start:end])
        start = end
