"""The page in a real browser: nothing on its console, and no scrolling to the side on a phone or a wide screen."""

import pytest
from browser import CHROMIUM, opened_browser
from runs import HOSTILE, done_run

from tfdist.diagnostics.report.page import write_page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
LONG = "a-name-without-an-end-" * 20
# What sticks out to the right of the page, unless it is inside something that scrolls by itself.
STICKS_OUT = """
[...document.querySelectorAll('main *')].filter(element =>
    !element.closest('.scroll, svg') && element.getBoundingClientRect().right > innerWidth + 1
).map(element => element.outerHTML.slice(0, 200))
"""
PAPER = "getComputedStyle(document.querySelector('section')).backgroundColor"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with opened_browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run = done_run(folder / "run", data=LONG, classes=[LONG, HOSTILE, "2"], warning=LONG)
    return write_page([run]), write_page([run, done_run(folder / LONG[:200], rate=0.1)])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_fits_and_nothing_is_wrong_with_it(browser, pages, width, scheme):
    papers = []
    for page in pages:
        browser.open(page, width=width, scheme=scheme)
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        assert browser.evaluate(STICKS_OUT) == []
        assert browser.evaluate("document.querySelectorAll('.chart > svg').length") == 4
        papers.append(browser.evaluate(PAPER))
    assert browser.problems == []
    assert papers == ["rgb(255, 255, 255)" if scheme == "light" else "rgb(26, 30, 36)"] * 2
    assert browser.screenshot().startswith(b"\x89PNG")


def test_tables_of_numbers_open_with_the_keyboard(browser, pages):
    browser.open(pages[0], width=400, scheme="light")
    browser.evaluate("document.querySelector('.chart summary').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.call(
            "Input.dispatchKeyEvent",
            type=kind,
            key="Enter",
            code="Enter",
            text="\r",
            windowsVirtualKeyCode=13,
        )
    assert browser.evaluate("document.querySelector('.chart details').open") is True
    assert browser.evaluate("document.documentElement.scrollWidth") == 400
    assert "0.05" in browser.evaluate("document.querySelector('.chart table').innerText")


def test_a_problem_would_be_seen(browser, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<script>console.error('wrong')</script><p style='width: 3000px'>wide</p>")
    browser.open(page, width=400, scheme="light")
    assert "wrong" in browser.problems.pop()
    assert browser.evaluate("document.documentElement.scrollWidth") > 3000
