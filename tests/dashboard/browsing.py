"""A user with a browser, who notices errors on the console and requests to other hosts."""

from __future__ import annotations

import time
from typing import Any, Literal, Self

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request

PATIENCE = 15.0


class Visitor:
    """One browser session. The end of its context fails the test after any error on the console."""

    def __init__(
        self, browser: Browser, address: str, *, width: int = 1280, scheme: Literal["light", "dark"] = "light"
    ) -> None:
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
        self.page.wait_for_selector("h1")

    def open(self, path: str) -> None:
        """Open a page, and wait until its figures are drawn."""
        answer = self.page.goto(f"{self.address}/{path}")
        assert answer is not None
        assert answer.status == 200, answer.text()
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
