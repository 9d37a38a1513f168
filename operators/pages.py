"""Pages: makes a row of each page of a PDF."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from operators.images.columns import IMAGE
from operators.images.forms import ImageForms, holds_images, input_folders
from operators.images.page_process import PageEnded, PageProcess, require_pdfium
from operators.images.read import BadImage
from operators.rows.lineage import append_to_lineage, refuse_identity, with_lineage
from operators.settings import DataSettings
from operators.settings.checks import check
from pipeline.api import LINEAGE, ROW, Batch, Operator, Output, RejectKind, add_columns, require_column
from pipeline.api.errors import SchemaError
from pipeline.api.protocols import Runtime
from pipeline.api.records import Rejects

PAGE = pa.field("page", pa.int32())
PAGE_IMAGE = pa.field("image", IMAGE)
PAGE_TEXT = pa.field("page_text", pa.string())
MOST_ENDS = 3
"""Pages of a PDF that may end the process which renders them, by time or memory; those that follow are not tried."""


class Pages(Operator):
    """Makes a row of each page of a PDF: adds `page` (int32, from 1), `image` (struct<bytes, path>: a PNG of the page)
    and `page_text` (string: the text layer, empty for a scan). The other columns are repeated, and the position of the
    page in the PDF, from 0, is appended to `lineage`, which comes after `row`.

    A PDF that cannot be read (damaged, encrypted, without pages) is a reject, and so is a page that cannot be rendered.
    Pages are rendered one at a time, in a process that may use 60 s for a page and 2 GiB of memory; a page costs some
    50 ms. The column of PDFs itself leaves, unless it is of texts: each page would have a copy of the whole file.

    Args:
        column: a column of PDFs: paths (below the folder of `data.path` or `data.image_root`), bytes, or structs
            {bytes, path}.
        data: the job's `data`, for `image_root` and `path`.
        longest_side: pixels of the longer side of a page.
        first_page: the first page to render, from 1.
        last_page: the last one; the PDF's last where none is given. A PDF without pages in this range leaves with kind
            `filtered`.
        most_pages: a PDF with more pages in the range is a reject.
        most_dpi: dots per inch that no page exceeds: a small page is not enlarged to `longest_side`.
        least_dpi: a page that would have fewer is a reject, since it cannot be read.

    Example:
        pages:
          inputs: source
          op:
            _target_: operators.pages.Pages
            column: pdf
            data: ${data}
    """

    def __init__(
        self,
        column: str,
        data: DataSettings,
        longest_side: int = 1288,
        first_page: int = 1,
        last_page: int | None = None,
        most_pages: int = 5000,
        most_dpi: float = 300.0,
        least_dpi: float = 0.0,
    ) -> None:
        refuse_identity([column], "PDFs; name another column")
        most = data.image_max_pixels
        check(longest_side >= 1, "longest_side", longest_side, "it is 1 or more")
        check(longest_side**2 <= most, "longest_side", longest_side, f"a page may have data.image_max_pixels={most}")
        check(first_page >= 1, "first_page", first_page, "pages count from 1")
        check(last_page is None or last_page >= first_page, "last_page", last_page, f"first_page is {first_page}")
        check(most_pages >= 1, "most_pages", most_pages, "it is 1 or more")
        check(most_dpi > 0, "most_dpi", most_dpi, "it is above 0")
        check(0 <= least_dpi <= most_dpi, "least_dpi", least_dpi, f"it is from 0 to most_dpi={most_dpi:g}")
        self._column, self._data = column, data
        self._first, self._last, self._most = first_page, last_page, most_pages
        self._how: dict[str, Any] = {"side": longest_side, "most_dpi": most_dpi, "least_dpi": least_dpi}

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_pdfium()
        kind = require_column(schema, self._column).type
        if pa.types.is_list(kind) or not holds_images(kind):
            raise SchemaError(
                f"column '{self._column}' has type {kind}; a PDF is a path (string), bytes (binary) or"
                " struct<bytes, path>, and of a list operators.explode.Explode makes rows"
            )
        require_column(schema, ROW.name, [ROW.type])
        self._keeps = kind == pa.string()
        kept = pa.schema([f for f in schema if self._keeps or f.name != self._column])
        self._schema = with_lineage(add_columns(kept, PAGE, PAGE_IMAGE, PAGE_TEXT))
        self._forms = ImageForms(self._data.image_root, input_folders(self._data.path))
        self._process = PageProcess()
        return self._schema

    def open(self, runtime: Runtime) -> None:
        require_pdfium()

    def process(self, batch: Batch) -> Iterable[Output]:
        for index in range(batch.num_rows):
            yield from self._pages(batch.with_data(batch.data.slice(index, 1)))

    def close(self) -> None:
        self._process.close()

    def _pages(self, of: Batch) -> Iterator[Output]:
        """Yield the pages of the PDF in a batch of one row, and rejects."""
        path = None
        try:
            source, path = self._source(of.data.column(self._column)[0].as_py())
            numbers = self._range(self._process.open(source))
        except BadImage as error:
            yield of.reject([0], f"{_name(path)} {error}")
            return
        if not numbers:
            yield of.reject([0], f"{_name(path)} ends before page {self._first}", RejectKind.FILTERED)
            return
        yield from self._rendered(of, numbers, path)

    def _source(self, value: Any) -> tuple[bytes | str, str | None]:
        """Return the content of the PDF that a value holds, or its path; and its path, which may be only a name. Raises
        BadImage."""
        text = value.get("path") if isinstance(value, dict) and not value.get("bytes") else value
        if isinstance(text, str) and "://" in text[:64] and text[:5].lower() not in ("file:", "data:"):
            raise BadImage(
                "is at a URL, and PDFs are not fetched: Pages reads files of this machine, and bytes; fetch it into a"
                " folder, and give its path"
            )
        found = self._forms.images(value)
        if not found:
            raise BadImage("is missing: the column is null or empty")
        content, path = found[0]["bytes"], found[0]["path"]
        return (path if content is None else content), path

    def _range(self, pages: int) -> range:
        """Return the numbers of the pages to render, of a PDF with `pages` of them. Raises BadImage."""
        if pages < 1:
            raise BadImage("has no pages")
        last = pages if self._last is None else min(pages, self._last)
        if (count := last + 1 - self._first) > self._most:
            raise BadImage(f"has {count:,} pages from page {self._first} on, more than most_pages={self._most}")
        return range(self._first, last + 1)

    def _rendered(self, of: Batch, numbers: range, path: str | None) -> Iterator[Output]:
        """Yield a batch for each page. One is held back: what is rejected after it counts with it (Batch.expanded)."""
        held: pa.RecordBatch | None = None
        rejected: list[Rejects] = []
        expanded, ends, reason = -1, 0, ""  # the row of the PDF is none of these
        for number in numbers:
            try:
                if ends >= MOST_ENDS:
                    raise BadImage(f"was not tried, after {ends} of which the last {reason}")
                page = self._process.page(number, **self._how)
            except BadImage as error:
                if isinstance(error, PageEnded):
                    ends, reason = ends + 1, str(error)
                rejected += [of.with_data(self._row(of, number)).reject([0], f"page {number} of {_name(path)} {error}")]
                expanded += 1
                continue
            if held is not None:
                yield of.with_data(held, expanded=expanded)
                yield from rejected
                expanded, rejected = 0, []
            image = {"bytes": page.png, "path": path and f"{path}#page={number}"}
            held = self._row(of, number, image, page.text)
            expanded += 1
        if held is None:
            first = rejected[0].rows[0].reason
            yield of.reject([0], first if len(numbers) == 1 else f"none of {len(numbers)} pages: {first}")
        else:
            yield of.with_data(held, expanded=expanded)
            yield from rejected

    def _row(
        self, of: Batch, number: int, image: dict[str, Any] | None = None, text: str | None = None
    ) -> pa.RecordBatch:
        """Return the row of a page."""
        lineage = of.data.column(LINEAGE.name) if LINEAGE.name in of.data.schema.names else None
        values = {
            LINEAGE.name: append_to_lineage(lineage, np.array([number - 1], np.int32)),
            PAGE.name: pa.array([number], PAGE.type),
            PAGE_IMAGE.name: pa.array([image], IMAGE),
            PAGE_TEXT.name: pa.array([text], PAGE_TEXT.type),
        }
        if self._keeps and str(of.data.column(self._column)[0])[:5].lower() == "data:":
            values[self._column] = pa.nulls(1, pa.string())  # the whole file, in base64
        columns = [values[f.name] if f.name in values else of.data.column(f.name) for f in self._schema]
        return pa.record_batch(columns, schema=self._schema)


def _name(path: str | None) -> str:
    """Return the subject of a reject's reason."""
    return "the PDF" if path is None else repr(path)
