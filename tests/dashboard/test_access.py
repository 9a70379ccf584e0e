"""Who sees what: tokens, permissions and namespaces, as the API server reviews them."""

from __future__ import annotations

import json
import signal
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from ..controlplane.asking import ask
from .browsing import Visitor
from .world import World

SECRET = "finance/secret-merger"
ATTEMPTS = 20
"""Ages change every second: so many pairs of equal answers are tried."""
PAGES = ("overview", "pending", "queues", "nodes", "gangs", "plugin-timings")


@pytest.fixture(scope="module")
def scientist(the_world: World) -> str:
    """The token of a user who may list pods in one namespace."""
    return the_world.new_user("scientist", "science")


@pytest.mark.parametrize("path", ["/overview", "/pending?pod=science/huge-0", "/", "/no-such-page"])
def test_without_a_token_a_page_is_the_form_to_sign_in(world: World, path: str) -> None:
    status, text = world.get(path)
    assert status == HTTPStatus.UNAUTHORIZED
    assert '<label for="token">Token</label>' in text
    assert "science" not in text.replace("pending?pod=science", "")


@pytest.mark.parametrize("path", ["/api/overview", "/events/overview", "/overview?format=json"])
def test_without_a_token_programs_get_one_line_as_json(world: World, path: str) -> None:
    status, text = world.get(path)
    assert (status, json.loads(text)) == (HTTPStatus.UNAUTHORIZED, {"error": "sign in"})


@pytest.mark.parametrize("token", ["wrong", "é", "a" * 20_000])
def test_a_wrong_token_is_refused(world: World, token: str) -> None:
    status, text = ask(world.host, world.port, "/api/overview", headers={"Authorization": f"Bearer {token[:7000]}"})
    assert status == HTTPStatus.UNAUTHORIZED
    assert "token" in json.loads(text)["error"]


def test_a_user_sees_the_namespaces_that_the_user_may_read(world: World, scientist: str) -> None:
    everything = json.loads(world.get("/api/pending", world.plane.token())[1])
    assert SECRET in str(everything)
    for page in PAGES:
        status, text = world.get(f"/api/{page}", scientist)
        assert status == HTTPStatus.OK, text
        assert "secret-merger" not in text, page
        assert "finance/" not in text, page
    own = json.loads(world.get("/api/pending", scientist)[1])
    assert "science/huge-0" in str(own)


def test_whether_a_pod_of_another_namespace_exists_is_not_shown(world: World, scientist: str) -> None:
    def answer(name: str) -> Any:
        return json.loads(world.get(f"/api/pending?pod=finance/{name}", scientist)[1])

    for _ in range(ATTEMPTS):
        missing, existing, again = answer("no-merger"), answer("secret-merger"), answer("no-merger")
        if missing == again:
            break
    assert missing == again, "the page changes all the time"
    assert "Pending pod finance/secret-merger was not found" in existing["summary"]
    assert str(existing["tables"]) == str(missing["tables"])
    assert existing["summary"].replace("secret-merger", "no-merger") == missing["summary"]


def test_pods_of_other_namespaces_are_counted(world: World, scientist: str) -> None:
    """The sums are those of the API server."""
    finance = world.pods("finance")
    pending = sum("nodeName" not in pod["spec"] for pod in finance)
    running = len(finance) - pending
    rows = json.loads(world.get("/api/overview", scientist)[1])["tables"]["pods"]["rows"]
    shown = {row[0]: row[1] for row in rows}
    assert shown["Pending, in other namespaces"] == pending
    assert shown["Running, in other namespaces"] == running


def test_a_page_in_the_browser_shows_no_other_namespace(world: World, browser: Browser, scientist: str) -> None:
    with Visitor(browser, world.address) as visitor:
        visitor.sign_in(scientist)
        for page in PAGES:
            visitor.open(page)
            assert "secret-merger" not in visitor.page.locator("main").inner_text()
            assert "finance/" not in visitor.page.content()
            assert "In namespaces that you have no permission to read:" in visitor.page.locator("#notes").inner_text()


def test_a_user_without_the_path_is_refused_in_words(world: World) -> None:
    token = world.new_user("stranger", "science", reader=False)
    status, text = world.get("/api/overview", token)
    assert status == HTTPStatus.FORBIDDEN
    assert json.loads(text)["error"] == (
        "user system:serviceaccount:science:stranger has no permission to get /dashboard; "
        "bind the user to a ClusterRole such as fluence-reader"
    )


def test_a_user_without_namespaces_sees_sums_only(world: World) -> None:
    token = world.new_user("auditor", "science", reads=False)
    for page in PAGES:
        status, text = world.get(f"/api/{page}", token)
        assert status == HTTPStatus.OK
        assert "science/" not in text
        assert "finance/" not in text


def test_a_removed_permission_ends_what_an_open_page_shows(world: World, browser: Browser) -> None:
    token = world.new_user("leaver", "finance")
    with Visitor(browser, world.address) as visitor:
        visitor.sign_in(token)
        visitor.open("pending")
        assert SECRET in visitor.page.content()
        world.revoke("leaver", "finance")
        visitor.patience = 90.0
        visitor.wait_for("!document.body.innerText.includes('secret-merger')")


def test_sign_out_ends_the_session(world: World, browser: Browser) -> None:
    with Visitor(browser, world.address) as visitor:
        visitor.sign_in(world.plane.token())
        visitor.open("overview")
        cookie = visitor.page.context.cookies()[0]
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        visitor.page.get_by_role("button", name="Sign out").click()
        visitor.page.wait_for_selector("#token")
        status, _ = world.get("/overview", Cookie=f"{cookie['name']}={cookie['value']}")
        assert status == HTTPStatus.UNAUTHORIZED


@pytest.mark.parametrize("origin", [{}, {"Origin": "http://elsewhere.example"}, {"Origin": "null"}])
def test_a_form_of_another_site_is_refused(world: World, origin: dict[str, str]) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded", **origin}
    body = f"token={world.plane.token()}"
    status, text = ask(world.host, world.port, "/login", method="POST", body=body, headers=headers)
    assert status == HTTPStatus.FORBIDDEN
    assert "this form is from another site" in text.lower()


def test_the_log_has_no_token(world: World, scientist: str) -> None:
    text = world.log.read_text()
    assert scientist not in text
    assert world.plane.token() not in text


def test_sigterm_ends_the_dashboard_cleanly(world: World, tmp_path: Path) -> None:
    from ..controlplane.forked import FluenceProgram

    log = tmp_path / "second.log"
    log.touch()
    program = FluenceProgram("second", ["dashboard", "examples/01-quickstart", "--bind", "127.0.0.1:0"], log)
    program.wait_until(lambda: "?token=" in log.read_text(), 60)
    program.signal(signal.SIGTERM)
    until = time.monotonic() + 20
    while program.status is None and time.monotonic() < until:
        time.sleep(0.05)
    assert program.status == 0
