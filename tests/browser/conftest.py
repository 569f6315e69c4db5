from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import NoBrowser, Watch, open_browser
from tests.shell.serving import Server, serve

expect.set_options(timeout=20_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in item.path.parts:
            item.add_marker("browser")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    try:
        with open_browser() as running:
            yield running
    except NoBrowser as error:
        if os.environ.get("CI_REQUIRE_BROWSER") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    """A fresh page; afterwards nothing stands on its console, and it has asked no other host."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(30_000)
    watch = Watch(page, server.address)
    yield page
    context.close()
    assert watch.messages == []
    assert watch.strangers == []
