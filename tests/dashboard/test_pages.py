"""Every page, in a real browser: what it shows is what the API server says, and it follows changes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from .browsing import Visitor
from .world import GPU, TEAMS, World

PENDING = "science/huge-0"
SHOTS = os.environ.get("FLUENCE_SCREENSHOTS", "")
"""A directory for screenshots, such as docs/assets/screenshots; empty for none."""
DOCUMENTED = {
    ("overview", 1280, "light"): "overview",
    (f"pending?pod={PENDING}", 1280, "light"): "pending",
    ("nodes", 1280, "dark"): "nodes",
    ("gangs", 1280, "light"): "gangs",
}
"""The files that README and documentation show, by page, width and colour scheme."""
MOST_BYTES = 200_000
PAGES = ("overview", "pending", "queues", "nodes", "gangs", "plugin-timings")


def counted(world: World, namespace: str = "") -> tuple[int, int]:
    """Pending and running pods, as the API server has them."""
    pods = world.pods(namespace)
    return (sum("nodeName" not in pod["spec"] for pod in pods), sum("nodeName" in pod["spec"] for pod in pods))


def test_every_page_loads_without_errors_and_without_other_hosts(admin: Visitor) -> None:
    admin.open("overview")
    assert set(PAGES) <= set(admin.pages)
    for path in admin.pages:
        admin.open(path)
        assert admin.summary
        assert "failed" not in admin.summary
        figures = admin.page.locator(".fluence-figure")
        drawn = admin.page.locator(".fluence-figure > *")
        assert drawn.count() == figures.count(), path


def test_the_overview_counts_the_pods_of_the_api_server(world: World, admin: Visitor) -> None:
    pending, running = counted(world)
    admin.open("overview")
    rows = {row[0]: int(row[1].replace(",", "")) for row in admin.table("pods")}
    assert rows["Pending"] == pending
    assert rows["Bound"] + rows["Running"] == running
    assert f"{pending} pods are pending and {running} run on 24 nodes" in admin.summary


def test_the_page_about_nodes_has_every_node(world: World, admin: Visitor) -> None:
    names = {each["metadata"]["name"] for each in world.plane.request("GET", "/api/v1/nodes")[1]["items"]}
    status, text = world.get("/api/nodes", world.plane.token())
    assert status == 200
    answer = json.loads(text)
    assert f"{len(names)} nodes" in answer["summary"]
    admin.open("nodes")
    assert admin.summary == answer["summary"]


def test_a_pending_pod_is_found_by_search_with_its_verdicts(admin: Visitor) -> None:
    admin.open("overview")
    admin.page.get_by_label("Find a pod").fill("science/huge-0")
    admin.find(admin.page.get_by_role("search", name="Pods"), "pending?pod=science%2Fhuge-0")
    assert "science/huge-0" in admin.summary
    assert admin.page.get_by_role("heading", name="Plugins and nodes for science/huge-0").count() == 1


def test_a_page_follows_the_cluster_when_a_pod_is_bound(world: World, admin: Visitor) -> None:
    admin.open("overview")
    _, before = counted(world)
    admin.page.evaluate("window.unchanged = true")  # a reload would lose it
    world.create_pod("science", "late")
    shown = f"and {before + 1} run on"
    try:
        admin.wait_for("text => document.getElementById('summary').textContent.includes(text)", shown)
        assert admin.page.evaluate("window.unchanged")
        rows = {row[0]: int(row[1].replace(",", "")) for row in admin.table("pods")}
        assert rows["Bound"] + rows["Running"] == before + 1
    finally:
        world.delete("science", "late")
    admin.wait_for("text => document.getElementById('summary').textContent.includes(text)", f"and {before} run on")


def test_an_update_keeps_focus_and_selection(world: World, admin: Visitor) -> None:
    admin.open("pending")
    link = admin.page.locator('[data-table="pods"] tbody a').first
    link.focus()
    text = link.inner_text()
    admin.page.evaluate("window.number = Number(document.querySelector('main').dataset.number)")
    world.create_pod("science", "zz-too-large", cpu="64")
    try:
        admin.wait_for("Number(document.querySelector('main').dataset.number) > window.number")
        admin.wait_for("document.body.innerText.includes('zz-too-large')")
        assert admin.page.evaluate("document.activeElement.textContent") == text
    finally:
        world.delete("science", "zz-too-large")


def test_nodes_are_found_by_search_with_their_gpus(world: World, admin: Visitor) -> None:
    admin.open("nodes")
    admin.page.get_by_label("Find nodes").fill("r3-n4")
    admin.find(admin.page.get_by_role("search", name="This page"), "nodes?node=r3-n4")
    assert admin.page.get_by_label("Find nodes").input_value() == "r3-n4"
    assert [row[0] for row in admin.table("nodes")] == ["r3-n4"]
    assert [(row[0], row[2]) for row in admin.table("gpus")] == [("r3-n4", str(index)) for index in range(8)]
    offered = world.plane.request("GET", "/api/v1/nodes/r3-n4")[1]["status"]["allocatable"][GPU]
    assert f"of {offered} GPUs" in admin.summary


def test_two_users_who_see_the_same_get_the_same_update(world: World, browser: Browser, admin: Visitor) -> None:
    with Visitor(browser, world.address) as other:
        other.sign_in(world.plane.token())
        for visitor in (admin, other):
            visitor.open("overview")
        assert admin.summary == other.summary


def test_a_plain_page_works_without_the_script(world: World, browser: Browser) -> None:
    """The text and the tables are in the page itself."""
    status, text = world.get("/overview", world.plane.token())
    assert status == 200
    assert "pods are pending" in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_no_violation(world: World, browser: Browser, width: int, scheme: str) -> None:
    assert scheme in ("light", "dark")
    with Visitor(browser, world.address, width=width, scheme=scheme) as visitor:  # type: ignore[arg-type]
        visitor.page.goto(f"{world.address}/login")
        found = {"login": visitor.violations}
        visitor.sign_in(world.plane.token())
        for path in (*visitor.pages, f"pending?pod={PENDING}"):
            visitor.open(path)
            found[path] = visitor.violations
            assert visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            screenshot(visitor, DOCUMENTED.get((path, width, scheme)))
    assert {path: each for path, each in found.items() if each} == {}


def screenshot(visitor: Visitor, name: str | None) -> None:
    """Write a screenshot, if it is wanted."""
    if not SHOTS or name is None:
        return
    file = Path(SHOTS) / f"{name}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    visitor.page.wait_for_timeout(500)
    visitor.page.screenshot(path=file)
    assert file.stat().st_size < MOST_BYTES


def test_the_documented_screenshots_exist_and_are_small() -> None:
    folder = Path(__file__).parents[2] / "docs" / "assets" / "screenshots"
    files = {path.stem: path.stat().st_size for path in folder.glob("*.png")}
    assert files.keys() == set(DOCUMENTED.values())
    assert max(files.values()) < MOST_BYTES


def test_the_keyboard_reaches_navigation_search_and_tables(admin: Visitor) -> None:
    admin.open("pending")
    reached = []
    for _ in range(40):
        admin.page.keyboard.press("Tab")
        reached.append(
            admin.page.evaluate(
                "(e => e.getAttribute('href') || e.id || e.getAttribute('role') || e.tagName)(document.activeElement)"
            )
        )
    assert reached[0] == "#main"  # the link that skips the navigation is first
    for wanted in ("overview", "nodes", "pod", "region"):
        assert wanted in reached, reached
    assert reached.index("overview") < reached.index("pod") < reached.index("region")


def test_each_team_is_a_queue(admin: Visitor) -> None:
    admin.open("queues")
    text = admin.page.locator("main").inner_text()
    assert all(team in text for team in TEAMS)
