"""What the rows of `asked` are answered by a server that does not fail."""

from __future__ import annotations

import pytest

from tests.operators.endpoint.asking import asked, texts
from tests.operators.endpoint.fault_server import FaultServer


@pytest.fixture(scope="session")
def expected(tmp_path_factory):
    with FaultServer() as server:
        return texts(asked(server, tmp_path_factory.mktemp("plain") / "out"))
