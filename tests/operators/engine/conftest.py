"""The memories that the fake decoder can have."""

from __future__ import annotations

import pytest

from operators.engine.backend.fake import FakeDecoder


@pytest.fixture(params=[True, False], ids=["attention", "recurrent"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All fakes can cut what they keep of a row, or none can."""
    monkeypatch.setattr(FakeDecoder, "partial", request.param)
    monkeypatch.setattr(FakeDecoder, "rollback", 7)
