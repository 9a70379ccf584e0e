"""A user with a browser, who notices errors on the console and requests to other hosts."""

from __future__ import annotations

import time
from typing import Any, Literal, Self

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Error, Locator, Page, Request

PATIENCE = 15.0
_CUT = """() => {
  const found = [];
  const hidden = "script, style, .fluence-figure, .hidden, .skip, thead";
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    if (!node.data.trim() || node.parentElement.closest(hidden)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    for (let each = node.parentElement; each && box.width; each = each.parentElement) {
      const clips = each === document.documentElement || getComputedStyle(each).overflowX !== "visible";
      const {left, right} = each.getBoundingClientRect();
      if (clips && (box.left < left - 1 || box.right > right + 1)) found.push(node.data.trim());
    }
  }
  return found;
}"""
"""The texts that pass the sides of the window, or of an element that cuts or scrolls."""
_CUT_LABELS = """() => {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "12px helvetica";
  const plots = (window.Bokeh?.documents ?? []).flatMap((each) => each.roots());
  return plots.flatMap((plot) => plot.renderers.filter((each) => each.name === "ink-label").flatMap((each) =>
    each.data_source.data.label.flatMap((label) => label.split("\\n")).filter(
      (line) => pen.measureText(line).width > 0.95 * plot.inner_width)));
}"""
"""The lines of labels that are longer than their plot, which begin near its left side."""


class Visitor:
    """One browser session. The end of its context fails the test after any error on the console."""

    def __init__(
        self, browser: Browser, address: str, *, width: int = 1280, scheme: Literal["light", "dark"] = "light"
    ) -> None:
        self.browser = browser
        self.address = address
        self._context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(PATIENCE * 1000)
        self.patience = PATIENCE
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._requested)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._context.close()
        if kind is None:
            assert self.errors == []
            assert self.foreign == []

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url')})")

    def _requested(self, request: Request) -> None:
        if not request.url.startswith((self.address + "/", "data:", "blob:")):
            self.foreign.append(request.url)

    def sign_in(self, token: str) -> None:
        """Sign in by the form."""
        self.page.goto(f"{self.address}/login")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_selector("#main")  # the form has none

    def open(self, path: str) -> None:
        """Open a page, and wait until its figures are drawn."""
        answer = self.page.goto(f"{self.address}/{path}")
        assert answer is not None
        assert answer.status == 200, answer.text()
        self._wait_drawn()

    def find(self, form: Locator, path: str) -> None:
        """Submit a search that opens this page, and wait until its figures are drawn."""
        form.get_by_role("button").click()
        self.page.wait_for_url(lambda url: url == f"{self.address}/{path}")
        self._wait_drawn()

    def _wait_drawn(self) -> None:
        self.page.wait_for_selector("main[data-drawn], main:not(:has(figure))")

    @property
    def pages(self) -> list[str]:
        """The paths of the navigation."""
        links = self.page.get_by_role("navigation", name="Pages").get_by_role("link").all()
        return [str(link.get_attribute("href")) for link in links]

    @property
    def summary(self) -> str:
        """The summary in words."""
        return self.page.locator("#summary").inner_text()

    def table(self, name: str) -> list[list[str]]:
        """The rows of a table, as shown."""
        rows = self.page.locator(f'[data-table="{name}"] tbody tr')
        cells: list[list[str]] = rows.evaluate_all(
            "rows => rows.map(row => [...row.children].map(cell => cell.innerText.trim()))"
        )
        return cells

    @property
    def cut_texts(self) -> list[str]:
        """The texts of the page that its side, or that of an element which cuts or scrolls, does not show in full."""
        return list(self.page.evaluate(_CUT))

    @property
    def cut_labels(self) -> list[str]:
        """The lines of labels that are longer than their figure."""
        self.page.wait_for_timeout(300)  # until Bokeh has measured its plots
        return list(self.page.evaluate(_CUT_LABELS))

    @property
    def violations(self) -> list[str]:
        """What axe finds: the rule, and the elements."""
        response = Axe().run(self.page).response
        return [f"{each['id']}: {[node['target'] for node in each['nodes']]}" for each in response["violations"]]

    def wait_for(self, expression: str, argument: Any = None) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + self.patience  # Playwright's own way evaluates text, which the page forbids
        while not self._is_true(expression, argument):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{expression} is not true after {self.patience:g} s\n{self.page.inner_text('main')}"
                )
            self.page.wait_for_timeout(50)

    def _is_true(self, expression: str, argument: Any) -> bool:
        try:
            return bool(self.page.evaluate(expression, argument))
        except Error as error:
            if "navigation" not in str(error):
                raise
            return False  # the page loads again
