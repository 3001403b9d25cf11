"""The site in headless Chromium: the lineage graph by mouse and keyboard, on wide and narrow screens."""

import pytest
from web_steps import NEW

pytestmark = pytest.mark.slow
CORPUS = f"web/corpus@{NEW}"
PAGES = (
    "/",
    "/artifacts",
    f"/artifact/{CORPUS}",
    f"/lineage/{CORPUS}?show={CORPUS}",
    f"/corpus/{CORPUS}",
    "/corpora",
    "/egress",
)


def opened(browser, site, path, **settings):
    """A page, and what the browser complained of."""
    page, complaints = browser.new_context(**settings).new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request", lambda r: complaints.append(r.url) if not r.url.startswith((site.url, "data:")) else None
    )
    page.goto(site.url + path)
    return page, complaints


def test_lineage_shows_all_nodes_and_edges_and_a_click_opens_config_and_samples(browser, site, tmp_path):
    page, complaints = opened(browser, site, f"/lineage/{CORPUS}", viewport={"width": 1280, "height": 800})
    names = page.locator("svg.lineage a.node").evaluate_all(
        "all => all.map(n => n.getAttribute('aria-label'))"
    )
    assert sorted(names) == [
        f"web/broken@{NEW}, failed",
        f"web/buckets@{NEW}, built",
        f"web/corpus@{NEW}, built",
        f"web/report@{NEW}, built",
        f"web/source@{NEW}, built",
    ]
    assert page.locator("svg.lineage path.edge").count() == 4
    boxes = page.locator("svg.lineage a.node rect").evaluate_all(
        "all => all.map(n => n.getBoundingClientRect()).map(b => [b.left, b.top, b.right, b.bottom])"
    )
    assert all(left >= 0 and right <= 1280 for left, _, right, _ in boxes)
    page.get_by_role("link", name=f"web/source@{NEW}, built").click()
    panel = page.locator("#panel")
    panel.get_by_text("rows.jsonl").wait_for()
    assert panel.get_by_role("heading", name="Config").is_visible()
    assert "row 0 <script>" in panel.inner_text()
    assert f"show=web%2Fsource%40{NEW}" in page.url
    page.screenshot(path=tmp_path / "lineage.png")
    assert (tmp_path / "lineage.png").stat().st_size > 10_000
    page.go_back()
    page.get_by_text("Choose an artifact").wait_for()
    assert page.title().startswith("Lineage of")
    assert complaints == []


def test_lineage_works_by_keyboard_and_without_javascript(browser, site):
    page, _ = opened(browser, site, f"/lineage/web/source@{NEW}", java_script_enabled=False)
    assert page.locator("svg.lineage a.node").count() == 2
    page.get_by_role("link", name="one more hop down").focus()
    page.keyboard.press("Enter")
    page.locator("svg.lineage a.node").nth(3).wait_for()
    assert "down=2" in page.url
    page.get_by_role("link", name=f"web/corpus@{NEW}, built").click()
    assert page.locator("#panel").get_by_text("part-00000-of-00001.parquet").is_visible()


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_overflows_or_complains(browser, site, width, scheme):
    settings = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    for path in PAGES:
        page, complaints = opened(browser, site, path, **settings)
        assert page.evaluate("document.documentElement.scrollWidth") == width, path
        assert complaints == [], path
        assert "owned" not in page.title()
        page.context.close()


def test_controls_have_names_and_focus_is_visible(browser, site):
    for path in ("/artifacts", "/sql", "/diff", f"/corpus/{CORPUS}", "/egress"):
        page, _ = opened(browser, site, path)
        unnamed = page.locator("input:not([type=hidden]), select, textarea").evaluate_all(
            "all => all.filter(e => !e.labels.length && !e.getAttribute('aria-label')).map(e => e.outerHTML)"
        )
        assert unnamed == [], path
        headless = page.locator("thead th:not([scope])").count()
        assert headless == 0, path
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert style == "solid", path


def test_sql_runs_from_the_keyboard_and_the_url_holds_it(browser, site):
    page, complaints = opened(browser, site, "/sql")
    page.get_by_label("One SELECT").fill("SELECT 6 * 7 AS answer")
    page.keyboard.press("Control+Enter")
    page.get_by_role("cell", name="42", exact=True).wait_for()
    assert "sql=SELECT+6" in page.url
    assert complaints == []
