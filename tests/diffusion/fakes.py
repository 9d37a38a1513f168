"""A fake model whose vocabulary names no mask: `tests.diffusion.fakes:load`."""

from __future__ import annotations

from operators.decoding.fake import FakeModel, inspect
from operators.settings import ModelSettings

__all__ = ["inspect"]


def load(settings: ModelSettings) -> FakeModel:
    model = FakeModel()
    model.mask_id = None
    return model
