"""Streaming text: whole characters, stop strings over token borders, nothing that has to be taken back."""

from hypothesis import given, strategies as st

from lmlab.serving.text import TextStream, Vocabulary

PIECES = st.lists(st.binary(max_size=4), max_size=20)
STOPS = st.lists(st.text(alphabet="ab€", min_size=1, max_size=3), max_size=3)


def run(pieces, stop=(), before=b""):
    stream = TextStream(stop, before)
    parts = [stream.push(piece) for piece in pieces]
    return [*parts, stream.finish()], stream.stopped


@given(st.text(max_size=30), st.randoms())
def test_any_cut_of_valid_text_streams_back_whole_without_broken_characters(text, random):
    data = text.encode()
    cuts = sorted(random.sample(range(len(data) + 1), min(5, len(data) + 1)))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    parts, _ = run(pieces)
    assert "".join(parts) == text
    assert not any("\ufffd" in part for part in parts) or "\ufffd" in text


@given(PIECES)
def test_bytes_that_are_no_text_come_out_as_in_a_whole_decode_but_for_a_cut_last_character(pieces):
    parts, _ = run(pieces)
    whole = b"".join(pieces).decode(errors="replace")
    text = "".join(parts)
    assert whole.startswith(text)
    # Up to three bytes may be held back, and a whole decode shows each as a character of its own (ED A0).
    assert whole[len(text) :] in ("", "\ufffd", "\ufffd\ufffd", "\ufffd\ufffd\ufffd")


@given(st.lists(st.sampled_from(["a", "b", "€", "ab", "ba"]), max_size=12), STOPS)
def test_text_ends_before_the_first_stop_string_however_tokens_cut_it(words, stop):
    parts, stopped = run([word.encode() for word in words], stop)
    text = "".join(words)
    places = [text.find(s) for s in stop if s in text]
    assert stopped == bool(places)
    if not stopped:
        assert "".join(parts) == text
    else:
        assert text.startswith("".join(parts))
        assert not any(s in "".join(parts) for s in stop)


@given(st.lists(st.binary(min_size=1, max_size=3), max_size=12), STOPS)
def test_one_byte_at_a_time_gives_the_same_text_as_given_without_overlapping_stops(pieces, stop):
    stop = stop[:1]
    joined = b"".join(pieces)
    by_piece, _ = run(pieces, stop)
    by_byte, _ = run([bytes([byte]) for byte in joined], stop)
    assert "".join(by_piece) == "".join(by_byte)


def test_what_may_become_a_stop_string_is_held_back_until_it_is_decided():
    stream = TextStream(("END",))
    assert [stream.push(p) for p in (b"x E", b"N", b"o E", b"ND!")] == ["x ", "", "ENo ", ""]
    assert stream.stopped


def test_an_answer_completes_the_character_that_its_prompt_began():
    parts, _ = run([b"\xac!"], before=b"\xe2\x82")
    assert "".join(parts) == "€!"


def test_every_token_has_the_bytes_that_the_tokenizer_decodes(vocabulary: Vocabulary):
    text = "Grüße, 世界! 👩‍🚀 plain text\n\ttabs"
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text == vocabulary.tokenizer.decode(ids)
    assert b"".join(map(vocabulary.piece, ids)) == text.encode()
    assert len(ids) > len(text)  # some characters do take several tokens


def test_end_of_text_is_not_part_of_the_visible_answer(vocabulary: Vocabulary):
    eos = vocabulary.tokenizer.token_to_id("<|endoftext|>")
    assert vocabulary.visible(eos) == b""
    assert vocabulary.label(eos) == "<|endoftext|>"


def test_a_token_that_is_no_whole_text_is_named_by_its_bytes(vocabulary: Vocabulary):
    euro = vocabulary.encode("€")
    assert len(euro) > 1
    assert vocabulary.label(euro[0]).startswith("bytes:\\xe2")
