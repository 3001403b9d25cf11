"""Language id on the Universal Declaration of Human Rights, first article, 19 languages and scripts."""

import pyarrow as pa
import pytest
from sample_archives import prose

from lmlab.corpus import languages
from lmlab.corpus.language import detect, languages as told
from lmlab.dataflow import read_parquet

ARTICLES = {
    "en": "All human beings are born free and equal in dignity and rights. They are endowed with reason.",
    "de": "Jeder Mensch wird frei und gleich an Würde und Rechten geboren, begabt mit Vernunft und Gewissen.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y dotados de razón.",
    "it": "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti.",
    "pt": "Todos os seres humanos nascem livres e iguais em dignidade e em direitos. Dotados de razão.",
    "nl": "Elk mens wordt vrij en gelijk in waardigheid en rechten geboren, begaafd met verstand en geweten.",
    "pl": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "tr": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Akıl ve vicdana sahiptirler.",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом.",
    "uk": "Всі люди народжуються вільними і рівними у своїй гідності та правах. Вони наділені розумом.",
    "el": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "he": "כל בני אדם נולדו בני חורין ושווים בערכם ובזכויותיהם. כולם חוננו בתבונה ובמצפון.",
    "ar": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. وقد وهبوا عقلا وضميرا.",
    "hi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "th": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "ko": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "zh": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。",
}


@pytest.mark.parametrize("language", ARTICLES)
def test_language_is_told_from_one_sentence(language):
    value, score = detect(ARTICLES[language])
    assert value == language
    assert 0.5 < score <= 1


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_text_without_letters_has_no_language(text):
    assert detect(text) == ("und", 0.0)


def test_line_ends_and_null_bytes_do_no_harm():
    assert detect("All human\nbeings are\r\nborn\0 free and equal in dignity and rights.")[0] == "en"


def rows(*texts):
    table = pa.table({"id": [str(i) for i in range(len(texts))], "text": pa.array(texts, pa.large_string())})
    return told(table, 0.6).to_pylist()


def test_a_long_text_has_the_language_of_most_of_its_pieces():
    german, french = ((ARTICLES[language] + "\n\n") * 40 for language in ("de", "fr"))
    (row,) = rows(french[:1500] + german[:6000])
    assert row["value"] == "de"
    assert 0.6 <= row["share"] < 1


@pytest.mark.parametrize(
    "text", ["", "ok", "12 34 56 " * 50, "{}[]();=" * 80, "<svg><path d='M1 2z'/></svg>" * 9]
)
def test_short_texts_numbers_and_code_have_no_language(text):
    assert rows(text)[0]["value"] == "und"


def test_every_document_has_its_language_beside_it(documents, out):
    texts = [("a", language, ARTICLES[language]) for language in ("en", "de", "ja")]
    given = documents(texts, parts=2)
    made = out("languages")
    assert languages.body(made, given, workers=1).columns == ("value", "score", "share")
    parts = [read_parquet(made.path / f"part-0000{i}-of-00002.parquet").to_pylist() for i in range(2)]
    assert sorted(row["value"] for part in parts for row in part) == ["de", "en", "ja"]


def test_made_up_words_are_in_no_language():
    assert rows(prose(1, 300))[0]["value"] == "und"
