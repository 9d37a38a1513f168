"""A fake model whose vocabulary names no mask: `tests.operators.engine.block_diffusion.fakes:load`."""

from __future__ import annotations

from operators.engine.backend.fake import FakeModel, inspect
from operators.settings import ModelSettings

__all__ = ["inspect"]


def load(settings: ModelSettings) -> FakeModel:
    model = FakeModel()
    model.mask_id = None
    return model
