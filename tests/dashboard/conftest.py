"""Fixtures: one cluster with its dashboard, and Debian's Chromium."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from ..tools.real_programs import made, report_on_failure
from .browsing import Visitor
from .world import World

CHROMIUM = "/usr/bin/chromium"


@pytest.fixture(scope="session")
def the_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with made(lambda: World(tmp_path_factory.mktemp("dashboard"))) as world:
        yield world


@pytest.fixture
def world(request: pytest.FixtureRequest, the_world: World) -> Iterator[World]:
    with report_on_failure(request, the_world.report):
        yield the_world


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not Path(CHROMIUM).exists():
        message = f"{CHROMIUM} does not exist: run `make e2e-packages`"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield browser
        browser.close()


@pytest.fixture
def admin(world: World, browser: Browser) -> Iterator[Visitor]:
    """A signed-in user who may read everything."""
    with Visitor(browser, world.address) as visitor:
        visitor.sign_in(world.plane.token())
        yield visitor
