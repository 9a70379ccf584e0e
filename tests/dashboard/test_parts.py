"""Parts of an open page come and go with the cluster: the script adds, draws and hides them, without a reload."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from playwright.sync_api import Browser

from .browsing import Visitor
from .world import Dashboard, World

POD = "zz-comes-and-goes"
PAGE = f"pending?pod=science/{POD}"
SHOWN = """() => [...document.querySelectorAll("main [data-figure], main [data-table]")]
  .filter((each) => !each.hidden).map((each) => each.dataset.figure ?? each.dataset.table)"""
"""The names of the visible parts, in their order."""
DRAWN = """(name) => document.querySelector(`[data-figure="${name}"] .fluence-figure`)?.offsetHeight > 50"""
OF_THE_POD = ["verdicts", "rejected"]


def parts(visitor: Visitor) -> Any:
    return visitor.page.evaluate(SHOWN)


def test_parts_about_a_pod_appear_disappear_and_appear_again(world: World, admin: Visitor) -> None:
    admin.patience = 60.0  # the dashboard may show for twenty seconds that the new pod does not exist
    admin.open(PAGE)
    before = parts(admin)
    assert not set(OF_THE_POD) & set(before)
    admin.page.evaluate("window.unchanged = true")  # a reload would lose it
    for _ in range(2):
        world.create_pod("science", POD, cpu="64")
        try:
            for part in OF_THE_POD:
                admin.wait_for(f"name => ({SHOWN})().includes(name)", part)
            admin.wait_for(DRAWN, "verdicts")
            appeared = parts(admin)
            assert admin.table("rejected")[0][0] == "24"
            assert admin.page.get_by_role("heading", name=f"Plugins and nodes for science/{POD}").is_visible()
        finally:
            world.delete("science", POD)
        for part in OF_THE_POD:
            admin.wait_for(f"name => !({SHOWN})().includes(name)", part)
        assert parts(admin) == before
        assert not admin.page.get_by_role("heading", name=f"Plugins and nodes for science/{POD}").is_visible()
        assert appeared == order_of_a_new_page(world, admin)
    assert admin.page.evaluate("window.unchanged")
    assert admin.page.locator('[data-figure="verdicts"]').count() == 1


def order_of_a_new_page(world: World, admin: Visitor) -> Any:
    """The parts of a page about a pod that waits, in the order in which the server has them."""
    with Visitor(admin.browser, admin.address) as other:
        other.sign_in(world.plane.token())
        other.open("pending?pod=science/huge-0")
        return parts(other)


def test_a_figure_without_data_is_drawn_once_it_has_some(world: World, browser: Browser) -> None:
    """Lines begin with ten samples: a page of a new dashboard has their text alone."""
    kubeconfig = world.account_kubeconfig("fluence-dashboard", "kube-system")
    with ExitStack() as stack:
        new = Dashboard(world.folder / "new.log", kubeconfig, world.folder / "scheduler.yaml")
        stack.callback(new.program.stop)
        token = world.plane.token()
        page = new.get("/overview", token)[1]
        figure = page.partition('data-figure="over-time"')[2].partition("</figure>")[0]
        assert "<figcaption" in figure
        assert "fluence-figure" not in figure
        visitor = stack.enter_context(Visitor(browser, new.address))
        visitor.sign_in(token)
        # The browser gets that page, however many samples there are by now.
        first = {"body": page, "content_type": "text/html; charset=utf-8"}
        visitor.page.route(f"{new.address}/overview", lambda route: route.fulfill(**first), times=1)
        visitor.open("overview")
        assert visitor.page.evaluate(DRAWN, "utilisation")
        order = parts(visitor)
        visitor.page.evaluate("window.unchanged = true")
        visitor.patience = 40.0
        visitor.wait_for(DRAWN, "over-time")
        assert visitor.page.evaluate("window.unchanged")
        assert parts(visitor) == order
