"""Errors of requests: a code for programs, and a message for people.

A fault becomes the reason of a reject, `code: message`, so that rejects/ and errors.jsonl say the same.
"""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    """The `code` of an error line."""

    INVALID_LINE = "invalid_line"
    INVALID_CUSTOM_ID = "invalid_custom_id"
    DUPLICATE_CUSTOM_ID = "duplicate_custom_id"
    INVALID_METHOD = "invalid_method"
    INVALID_URL = "invalid_url"
    MODEL_NOT_FOUND = "model_not_found"
    MISSING_PARAMETER = "missing_parameter"
    UNKNOWN_PARAMETER = "unknown_parameter"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    INVALID_VALUE = "invalid_value"
    INCOMPLETE = "incomplete"
    FAILED = "request_failed"


class Fault(Exception):
    """A request that cannot be answered. The message says what is wrong and, where there is one, the remedy."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def reason(self) -> str:
        """The reason of a reject."""
        return f"{self.code}: {self}"


def parse_reason(reason: str) -> tuple[Code, str]:
    """Return the code and message of a reject. Rejects of other operators have the code FAILED."""
    code, separator, message = reason.partition(": ")
    if separator and code in list(Code):
        return Code(code), message
    return Code.FAILED, reason
