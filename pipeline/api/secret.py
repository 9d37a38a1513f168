"""Secret: the type of an operator's argument that is written and printed nowhere."""

from __future__ import annotations

from typing import Annotated

IS_SECRET = "pipeline.api.Secret"
Secret = Annotated[str, IS_SECRET]
"""A text, as `api_key: Secret` or `api_key: Secret | None`. Its value is in no file of a run, no fingerprint and no
message; a run resumes with another one."""
