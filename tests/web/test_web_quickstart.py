"""The site over the quick start's own artifacts, in headless Chromium: from a number to the documents."""

import pytest

from quickstart import VERSION

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def page(browser, serve, small_quickstart):
    """A tab over the small quick start; what its console says fails the test that caused it."""
    with serve(small_quickstart.root) as site:
        site.settled("/")
        tab = browser.new_context(viewport={"width": 1280, "height": 900}, base_url=site.url).new_page()
        complaints: list[str] = []
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        yield tab
        assert complaints == []


def test_a_person_walks_from_the_report_to_the_documents_that_were_dropped(page):
    page.goto("/")
    page.get_by_role("link", name=f"reports/quickstart@{VERSION}").first.click()
    page.get_by_role("link", name=f"runs/grug@{VERSION}").first.click()
    assert page.get_by_text("holdout macro bpb").is_visible()
    page.get_by_role("link", name="Lineage", exact=True).click()
    page.get_by_role("link", name=f"tokens/quickstart@{VERSION}, built").click()
    page.locator("#panel").get_by_role("link", name=f"corpus/quickstart@{VERSION}").first.click()
    page.goto(f"/corpus/corpus/quickstart@{VERSION}")
    for stage in ("extract", "normalize", "exact", "fuzzy", "holdout", "decontaminate"):
        assert page.get_by_text(stage, exact=True).first.is_visible()
    kept = page.get_by_text("Kept", exact=True)
    kept.wait_for()
    assert page.get_by_text("Rejected", exact=True).is_visible()


def test_the_whole_chain_is_one_graph(page):
    page.goto(f"/lineage/runs/grug@{VERSION}?up=9&down=9")
    shown = page.locator("svg.lineage a.node").evaluate_all(
        "all => all.map(n => n.getAttribute('aria-label').split('@')[0])"
    )
    kinds = ("raw", "documents", "corpus", "tokenizers", "tokens", "ladder", "bets", "calls", "evals")
    assert {f"{kind}/quickstart" for kind in (*kinds, "models", "samples", "reports")} <= set(shown)


@pytest.mark.parametrize("place", ["/", "/artifacts", "/corpora", "/sql", f"/artifact/runs/grug@{VERSION}"])
def test_pages_over_the_quick_start_paint_fast_and_fit(page, place):
    page.goto(place)
    page.goto(place)
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
    # The style guide's 300 ms, three times over: the tests share two cores with what they start.
    assert page.evaluate(paint) < 900
    assert page.evaluate("document.documentElement.scrollWidth") == 1280
