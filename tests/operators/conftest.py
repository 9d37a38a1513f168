"""What Generate does with an engine and with a server alike is tested with both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from operators.generate import Generate
from operators.settings.endpoint import EndpointSettings
from tests.operators.endpoint.fault_server import FaultServer
from tests.operators.test_generate import generate


@pytest.fixture(params=["engine", "server"])
def either(request) -> Iterator[Callable[..., Generate]]:
    """`generate`, of a node with the fake engine, and of one with a server."""
    if request.param == "engine":
        yield generate
        return
    with FaultServer() as server:
        yield partial(generate, model=EndpointSettings(url=server.url, api="completions"))
