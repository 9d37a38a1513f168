"""The contracts that operators are written against: errors, records, protocols, meters, forecasts."""

from typing import Annotated

IS_SECRET = "pipeline.api.Secret"
Secret = Annotated[str, IS_SECRET]
"""A text, as `api_key: Secret` or `api_key: Secret | None`: an argument whose value is in no file of a run, fingerprint or
message; a run resumes with another one."""
