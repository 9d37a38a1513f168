"""The config groups that operators read, as dataclasses that check their values.

Hydra composes them from conf/; `__post_init__` runs when the composed config becomes objects, so a value that cannot
work is refused before anything is loaded. What else a key is, its field says (`pipeline/api/keys.py`).
"""

from operators.settings.files import (
    FINISH_REASONS,
    CardSettings,
    DataSettings,
    OutputSettings,
    RetrySettings,
    StoreSettings,
)
from operators.settings.model import DecodeSettings, ModelSettings
from operators.settings.sampling import SamplingSettings

__all__ = [
    "FINISH_REASONS",
    "CardSettings",
    "DataSettings",
    "DecodeSettings",
    "ModelSettings",
    "OutputSettings",
    "RetrySettings",
    "SamplingSettings",
    "StoreSettings",
]
