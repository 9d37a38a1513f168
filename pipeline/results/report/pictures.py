"""Thumbnails of the images in rows of a page. Operators know what an image is, and read those that may be hostile."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

THUMBNAILS = "operators.images.thumbnails"
"""The module whose `thumbnails` makes JPEG files of the images of a row, by column."""
Pictures = Mapping[str, list[str]]
"""`data:` URLs by column."""
log = logging.getLogger(__name__)


def pictures(row: Mapping[str, Any], config: Mapping[str, Any], side: int | None = None) -> Pictures:
    """Return thumbnails of the images of a row of results; none where `report.images` is false.

    Args:
        config: the settings of the run, as its config.yaml has them.
        side: pixels of the longer side, at most; None for those of a report.
    """
    wanted = config.get("report")
    if isinstance(wanted, Mapping) and wanted.get("images") is False:
        return {}
    try:
        made: Callable[..., Mapping[str, list[bytes]]] = import_module(THUMBNAILS).thumbnails
        files = made(row, config, **({} if side is None else {"side": side}))
    except Exception as error:  # the row itself is shown all the same
        log.warning("a page lacks the images of a row: %s: %s", type(error).__name__, error)
        return {}
    return {name: [f"data:image/jpeg;base64,{base64.b64encode(f).decode()}" for f in of] for name, of in files.items()}
