"""Language id on the Universal Declaration of Human Rights, first article, 19 languages and scripts."""

import pytest

from lmlab.corpus.language import detect

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
