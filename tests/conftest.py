"""Settings of every test run: steady Hypothesis, fast tests first, one way to get the default model."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Exact models first, then the default model, the browser last."""
    slow = ("default_model", "browser")
    items.sort(key=lambda item: max((1 + i for i, name in enumerate(slow) if item.get_closest_marker(name)), default=0))


@pytest.fixture(scope="session")
def default_model():
    """The default model; skips with the reason where it cannot be had, unless ``CI_REQUIRE_DEFAULT_MODEL`` is set."""
    from models.fetch import ModelUnavailable
    from playground import bench

    try:
        return bench.default_model()
    except ModelUnavailable as error:
        if os.environ.get("CI_REQUIRE_DEFAULT_MODEL"):
            raise
        pytest.skip(str(error))
