from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from playground.lab import Lab, discover
from tests.shell.sample import write_lab
from tests.shell.serving import Server, serve


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return discover((Path(write_lab(tmp_path_factory.mktemp("sample"))),))["sample"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("served")) as running:
        yield running
