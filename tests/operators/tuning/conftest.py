"""The fixture of the engine's tests that calibrations need too."""

from tests.operators.engine.conftest import memory

__all__ = ["memory"]
