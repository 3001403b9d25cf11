"""Token estimates: close to the count, honest about how close, and not fooled by what comes first."""

from lmlab.storage import Path
from lmlab.tokens.documents import document_files
from lmlab.tokens.estimate import WINDOWS, count_tokens, estimate, sample_windows
from lmlab.tokens.fast import encoder_of


def test_an_estimate_agrees_with_the_count_within_its_error(corpus, texts, tokenizer) -> None:
    documents = corpus([("docs", text) for text in texts] + [("digits", "0123456789" * 500)])
    encoder, files = encoder_of(tokenizer), document_files(documents.path)
    exact = {one.domain: one for one in count_tokens(encoder, files)}
    for domain, sample in sample_windows(files, windows=40).items():
        found = estimate(encoder, domain, sample)
        assert (found.documents, found.size_bytes) == (exact[domain].documents, exact[domain].size_bytes)
        assert 1 <= found.windows < 80
        assert abs(found.bytes_per_token - exact[domain].bytes_per_token) <= 2 * found.error + 0.01
        assert abs(found.tokens / exact[domain].tokens - 1) < 0.05


def test_a_long_document_counts_by_its_bytes_not_as_one_of_many(tmp_path, tokenizer) -> None:
    (tmp_path / "a.txt").write_text("It is the word. " * 60_000)
    for number in range(300):
        (tmp_path / f"b{number}.txt").write_text(f"{number}£¥§")
    (sample,) = sample_windows(document_files(Path(tmp_path))).values()
    assert WINDOWS <= len(sample.windows) < 2 * WINDOWS
    assert sum(window.startswith(b"It is") or b"word" in window for window in sample.windows) > 190


def test_own_files_are_documents_of_the_folder_they_lie_in(tmp_path) -> None:
    (tmp_path / "prose").mkdir()
    (tmp_path / "prose" / "a.md").write_text("one")
    (tmp_path / "rows.jsonl").write_text('{"text": "two", "domain": "rows"}\n{"text": "three"}\n')
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    found = sample_windows(document_files(Path(tmp_path)))
    assert {domain: sample.documents for domain, sample in found.items()} == {
        "prose": 1,
        "rows": 1,
        "text": 1,
    }
