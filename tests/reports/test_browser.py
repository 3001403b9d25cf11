"""The report in a real browser with no network: nothing is asked for, nothing complains, charts are drawn."""

import pytest

pytestmark = pytest.mark.slow


def opened(browser, place, **settings):
    """The page, what it asked for, and what it complained of."""
    context = browser.new_context(offline=True, **settings)
    page, asked, complaints = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("requestfailed", lambda request: complaints.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(place)
    return page, asked, complaints


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_opens_from_disk_without_a_request_or_a_complaint(browser, built, width, scheme):
    experiment, _, _ = built
    place = (experiment.out.path / "report.html").local.as_uri()
    viewport = {"width": width, "height": 900}
    page, asked, complaints = opened(browser, place, viewport=viewport, color_scheme=scheme)
    assert asked == [place]
    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    drawn = page.evaluate(
        "[...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect())"
        ".filter(r => r.width > 200 && r.height > 100).length"
    )
    assert drawn == 5


def test_charts_follow_dark_mode(browser, built):
    experiment, _, _ = built
    place = (experiment.out.path / "report.html").local.as_uri()
    colours = {}
    for scheme in ("light", "dark"):
        page, _, _ = opened(browser, place, color_scheme=scheme)
        script = "getComputedStyle(document.querySelector('#chart-scaling svg text')).fill"
        colours[scheme] = (
            page.evaluate(script),
            page.evaluate("getComputedStyle(document.body).backgroundColor"),
        )
    assert colours["light"][0] != colours["dark"][0]
    assert colours["light"][1] == "rgb(255, 255, 255)"


def test_works_without_javascript(browser, built):
    experiment, _, _ = built
    place = (experiment.out.path / "report.html").local.as_uri()
    page, _, complaints = opened(browser, place, java_script_enabled=False)
    page.get_by_text("Terms of the bet").click()
    assert page.get_by_text("holdout tokens per domain").is_visible()
    assert complaints == []
