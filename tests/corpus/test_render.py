"""Renderers, one golden for each kind of file."""

import json

from lmlab.corpus.render import RENDERERS
from lmlab.corpus.render.files import JSON_LIMIT_BYTES


def texts(kind, data, name="x"):
    return [document.text for document in RENDERERS[kind](name, data)]


def test_text_keeps_everything_but_line_ends_and_the_byte_order_mark():
    assert texts("text", b"\xef\xbb\xbfone\r\n\ttwo  \n") == ["one\n\ttwo  \n"]


def test_text_that_is_not_utf8_is_read_with_replacements():
    assert texts("text", b"voil\xe0 la cr\xe8me") == ["voil� la cr�me"]


def test_html_becomes_paragraphs_without_markup_and_tells_its_language():
    page = """<!doctype html><html lang="de"><head><title>T</title><script>var x = 1;</script></head>
    <body><h1>Artikel&nbsp;1</h1><p>Jeder wird <b>frei</b> &amp; gleich geboren.</p><p>Zweiter.</p></body>"""
    (document,) = RENDERERS["html"]("declaration/deu.html", page.encode())
    assert document.language == "de"
    assert [line for line in document.text.replace("\xa0", " ").splitlines() if line] == [
        "Artikel 1",
        "Jeder wird frei & gleich geboren.",
        "Zweiter.",
    ]


PO = """# Translators:
msgid ""
msgstr ""
"Language: de\\n"

#: forms.py:3
msgid "Password changed."
msgstr "Passwort geändert."

#, fuzzy
msgid "Unsure"
msgstr "Unsicher"

msgid "Untranslated"
msgstr ""

#, python-format
msgid "%(n)d \\"file\\""
msgid_plural ""
"%(n)d "
"files"
msgstr[0] "%(n)d Datei"
msgstr[1] "%(n)d Dateien"

#~ msgid "Gone"
#~ msgstr "Weg"
"""


def test_gettext_pairs_what_is_translated():
    (document,) = RENDERERS["gettext"]("django/conf/locale/de/LC_MESSAGES/django.po", PO.encode())
    assert document.language == "de"
    assert document.text == (
        'Password changed.\nPasswort geändert.\n\n%(n)d "file"\n%(n)d files\n%(n)d Datei\n%(n)d Dateien\n'
    )


def test_catalogue_without_translations_is_empty():
    assert texts("gettext", b'msgid "a"\nmsgstr ""\n') == [""]


def test_icons_become_one_svg_each():
    body = '<path fill="currentColor" d="M4 2a2 2 0 0 0-2 2v8h2V8h2v4h2V4z"/>'
    icons = {
        "prefix": "mdi",
        "width": 24,
        "height": 24,
        "icons": {"a": {"body": body}, "b": {"body": "<p/>", "width": 16}},
    }
    document, other = RENDERERS["icons"]("icons.json", json.dumps(icons).encode())
    assert document.part == "a"
    assert document.text == f'<svg viewBox="0 0 24 24">{body}</svg>'
    assert other.text == '<svg viewBox="0 0 16 24"><p/></svg>'


def test_json_becomes_one_document_for_each_top_key_and_giants_are_cut():
    data = {"css": {"a": 1}, "api": {str(i): "é" * 50 for i in range(5000)}}
    small, giant = RENDERERS["json"]("data.json", json.dumps(data).encode())
    assert json.loads(small.text) == {"a": 1}
    assert JSON_LIMIT_BYTES - 2 <= len(giant.text.encode()) <= JSON_LIMIT_BYTES
    assert giant.part == "api"
