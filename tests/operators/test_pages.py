"""Pages: a row of each page of a PDF, whatever the PDF is."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from operators.images.columns import IMAGE
from operators.images.page_process import Page, PageEnded, PageProcess
from operators.images.read import read_image
from operators.pages import Pages
from operators.settings import DataSettings
from pipeline import PROJECT
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.records import LINEAGE, ROW, Batch, Rejects
from pipeline.cli.main import main
from tests.operators.flow import Flow, Rows, chain
from tests.operators.images.files import encoded, pixels
from tests.operators.images.pdfs import A4, drawing_of_drawings, pages, pdf, text

BYTES = pa.schema([("id", pa.string()), ("pdf", pa.binary())])
RED = b"1 0 0 rg 0 0 9999 9999 re f"
THREE = pages(text("one"), RED, text("three"))
IN_HALVES = pages(b"BT /F 12 Tf 14 TL 50 700 Td (a long exam-) Tj T* (ple of a line) Tj T* (and one) Tj ET")


Made = tuple[list[dict[str, Any]], list[tuple[str, str]]]


def run(*contents: bytes | None, limits: tuple[float, int] | None = None, **arguments: Any) -> Made:
    """Run the operator over rows "0", "1" ... with these PDFs; return the rows, and kinds and reasons of rejects."""
    schema = pa.schema([ROW, *BYTES])
    numbers = list(range(len(contents)))
    data = pa.record_batch([numbers, list(map(str, numbers)), pa.array(contents, pa.binary())], schema=schema)
    op = Pages("pdf", DataSettings(), **arguments)
    planned = op.plan(schema)
    if limits is not None:
        op._process = PageProcess(*limits)
    outputs = list(op.process(Batch(0, data)))
    child = op._process._process
    op.close()
    assert child is None or child.poll() is not None
    batches = [out for out in outputs if isinstance(out, Batch)]
    assert all(out.data.schema == planned and out.num_rows == 1 for out in batches)
    rejects = [reject for out in outputs if isinstance(out, Rejects) for reject in out.rows]
    assert len(contents) + sum(out.expanded for out in batches) == len(batches) + len(rejects)
    return [row for out in batches for row in out.data.to_pylist()], [(str(r.kind), r.reason) for r in rejects]


def picture(row: dict[str, Any]) -> np.ndarray:
    return read_image(row["image"], 10**7)


def test_a_row_for_each_page_with_its_picture_and_text(tmp_path):
    flow = Flow(tmp_path, chain(Rows([{"id": "a", "pdf": THREE}], BYTES), pages=Pages("pdf", DataSettings())))
    rows = flow.run()
    assert list(rows[0]) == ["row", "lineage", "id", "page", "image", "page_text"]
    assert [(r["row"], r["lineage"], r["id"], r["page"]) for r in rows] == [(0, [i], "a", i + 1) for i in range(3)]
    assert [r["page_text"] for r in rows] == ["one", "", "three"]
    assert [picture(r).shape for r in rows] == [(1288, 911, 3)] * 3
    one, red, _ = map(picture, rows)
    assert (one.min(), one.max(), one[0].min()) == (0, 255, 255), "black letters on white, none at the top"
    assert (red == [255, 0, 0]).all()
    modes = [Image.open(io.BytesIO(r["image"]["bytes"])).mode for r in rows]
    assert modes == ["L", "RGB", "L"], "what has no color is kept as gray"


def test_a_word_that_a_hyphen_parts_is_whole():
    rows, _ = run(IN_HALVES)
    assert rows[0]["page_text"] == "a long example of a line\nand one"


def test_what_a_page_is_given_bounds_its_size():
    def size(points: tuple[float, float], **arguments: Any) -> list[tuple[int, int]]:
        rows, _ = run(pages(text("x"), size=points), **arguments)
        return [picture(r).shape[1::-1] for r in rows]

    assert size(A4, longest_side=100) == [(71, 100)]
    assert size((842, 595), longest_side=100) == [(100, 71)]
    assert size((302, 302), longest_side=100) == [(100, 100)], "302 * (100 / 302) is more than 100"
    assert size((72, 36)) == [(300, 150)], "an inch, at 300 dots"
    assert size((72, 36), most_dpi=72) == [(72, 36)]
    assert size((10000, 10)) == [(1288, 2)]
    _, rejects = run(pages(text("x"), size=(7200, 7200)), least_dpi=50)
    assert rejects == [("error", "page 1 of the PDF would have 12.9 dots per inch, below least_dpi=50")]


def test_a_range_of_pages():
    many = pages(*(text(str(i)) for i in range(1, 8)))
    rows, _ = run(many, first_page=2, last_page=4, longest_side=50)
    assert [(r["page"], r["page_text"], r["lineage"]) for r in rows] == [(i, str(i), [i - 1]) for i in (2, 3, 4)]
    rows, _ = run(many, first_page=7, longest_side=50)
    assert [r["page"] for r in rows] == [7]
    assert run(many, first_page=8) == ([], [("filtered", "the PDF ends before page 8")])
    _, rejects = run(many, first_page=2, most_pages=5)
    assert rejects == [("error", "the PDF has 6 pages from page 2 on, more than most_pages=5")]


ENCRYPTED = b"/Encrypt<</Filter/Standard/V 1/R 2/P -4/O<%s>/U<%s>>>/ID[<00><00>]" % (b"11" * 32, b"22" * 32)
BROKEN = {
    "is missing: the column is null or empty": b"",
    "is damaged or cut off: pdfium cannot read it": THREE[:300],
    "is an HTML page, and no PDF": b"<!doctype html>",
    "is a picture (PNG), and no PDF; give pictures to data.image_column": encoded(pixels(4, 4), "PNG"),
    "is no PDF": b"hello",
    "is encrypted; save it without a password": pdf(
        b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[]/Count 0>>", more=ENCRYPTED
    ),
    "is damaged": pages(),
}


def test_a_pdf_that_cannot_be_read_costs_its_row_and_says_why():
    rows, rejects = run(THREE, *BROKEN.values(), None, THREE, longest_side=20)
    assert [(r["id"], r["page"]) for r in rows] == [(i, p) for i in ("0", str(len(BROKEN) + 2)) for p in (1, 2, 3)]
    for (kind, reason), why in zip(rejects, [*BROKEN, "is missing: the column is null"], strict=True):
        assert kind == "error"
        assert reason.startswith(f"the PDF {why}")


def test_pages_that_cannot_be_rendered_cost_themselves(monkeypatch):
    rendered = PageProcess.page

    def fails(self, number, **how):
        if number in failing:
            return rendered(self, 99, **how)
        return rendered(self, number, **how)

    monkeypatch.setattr(PageProcess, "page", fails)
    for failing in ({1}, {2}, {3}, {1, 2}, {2, 3}, {1, 3}):
        rows, rejects = run(THREE, longest_side=20)
        assert [r["page"] for r in rows] == sorted({1, 2, 3} - failing)
        assert len(rejects) == len(failing)
        assert all("cannot be rendered" in reason for _, reason in rejects)
    failing = {1, 2, 3}
    rows, rejects = run(THREE, longest_side=20)
    assert not rows
    ((_, reason),) = rejects
    assert reason.startswith("none of 3 pages: page 1 of the PDF cannot be rendered")


@pytest.mark.parametrize(("limits", "why"), [((0.3, 2048), "takes more than 0.3 s"), ((60, 300), "300 MiB of memory")])
def test_a_page_that_asks_for_hours_or_gigabytes_costs_itself(limits, why):
    """In 2 KB, a square is drawn a million times."""
    rows, rejects = run(drawing_of_drawings(6), THREE, longest_side=20, limits=limits)
    assert [(r["id"], r["page_text"]) for r in rows] == [
        *[("0", "before"), ("0", "after")],
        *[("1", "one"), ("1", ""), ("1", "three")],
    ]
    ((_, reason),) = rejects
    assert reason.startswith("page 2 of the PDF ")
    assert why in reason


def test_after_three_pages_that_end_the_process_none_is_tried(monkeypatch):
    tried = []

    def ends(self, number, **how):
        tried.append(number)
        if number == 1:
            return Page(b"picture", "text")
        raise PageEnded("takes more than 60 s")

    monkeypatch.setattr(PageProcess, "page", ends)
    rows, rejects = run(pages(*[text("x")] * 6))
    assert ([r["page"] for r in rows], tried) == ([1], [1, 2, 3, 4])
    assert [reason for _, reason in rejects] == [
        *(f"page {i} of the PDF takes more than 60 s" for i in (2, 3, 4)),
        *(f"page {i} of the PDF was not tried, after 3 of which the last takes more than 60 s" for i in (5, 6)),
    ]


def test_paths_lead_below_the_root(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.pdf").write_bytes(THREE)
    (tmp_path / "b.pdf").write_bytes(THREE)
    paths = ["a.pdf", "../b.pdf", "none.pdf", "https://example.com/a.pdf", str(tmp_path / "in/a.pdf")]
    op = Pages("pdf", DataSettings(image_root=str(tmp_path / "in")), longest_side=20, last_page=1)
    schema = pa.schema([("pdf", pa.string())])
    flow = Flow(tmp_path, chain(Rows([{"pdf": p} for p in paths], schema), pages=op))
    assert [r["pdf"] for r in flow.run()] == [paths[0], paths[4]], "a path stays beside its pages"
    reasons = " ".join(reason for _, _, reason in flow.tally.by_reason)
    for why in ("data.image_root=", "is not there", "PDFs are not fetched"):
        assert why in reasons


def test_no_pdf_is_fetched_whatever_form_its_url_has(tmp_path):
    urls = ("https://example.com/a.pdf", "s3://bucket/a.pdf")
    for kind, values in ((pa.string(), urls), (IMAGE, [{"bytes": None, "path": url} for url in urls])):
        rows = Rows([{"pdf": value} for value in values], pa.schema([("pdf", kind)]))
        flow = Flow(tmp_path, chain(rows, pages=Pages("pdf", DataSettings(image_domains=["example.com"]))))
        assert flow.run() == []
        [(_, _, reason)] = flow.tally.by_reason
        assert "Pages reads files of this machine" in reason
        assert "image_domains" not in reason


def test_a_struct_gives_its_place_to_the_picture(tmp_path):
    schema = pa.schema([("image", IMAGE)])
    op = Pages("image", DataSettings(), longest_side=20)
    flow = Flow(tmp_path, chain(Rows([{"image": {"bytes": THREE, "path": "a.pdf"}}], schema), pages=op))
    rows = flow.run()
    assert [picture(r).shape for r in rows] == [(20, 15, 3)] * 3
    assert [r["image"]["path"] for r in rows] == [f"a.pdf#page={i}" for i in (1, 2, 3)]


def test_the_job_of_the_page_of_docs(tmp_path, monkeypatch):
    text = (PROJECT / "docs/images.md").read_text(encoding="utf-8")
    example = text.partition("<!-- example: papers.yaml -->\n```yaml\n")[2].partition("```")[0]
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers/a.pdf").write_bytes(THREE)
    (tmp_path / "papers.yaml").write_text(example, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["job=papers.yaml", "progress=none"]) == 0
    (file,) = (tmp_path / "outputs/papers/data").glob("*.parquet")
    assert [(r["path"], r["page_text"]) for r in pq.read_table(file).to_pylist()] == [
        *(("a.pdf", "one"), ("a.pdf", ""), ("a.pdf", "three"))
    ]


@pytest.mark.parametrize(
    ("schema", "arguments", "error", "message"),
    [
        (BYTES, {"column": "file"}, SchemaError, "needs a column 'file'"),
        (pa.schema([("pdf", pa.list_(pa.binary()))]), {}, SchemaError, "Explode makes rows"),
        (pa.schema([("pdf", pa.int64())]), {}, SchemaError, "a PDF is a path"),
        (pa.schema([("pdf", pa.binary()), ("page", pa.int64())]), {}, SchemaError, "the column 'page'"),
        (BYTES, {"longest_side": 8001}, ConfigError, "data.image_max_pixels=64000000"),
        (BYTES, {"last_page": 1, "first_page": 2}, ConfigError, "first_page is 2"),
        (BYTES, {"least_dpi": 400}, ConfigError, "most_dpi=300"),
    ],
)
def test_what_cannot_work_is_refused_when_the_job_is_composed(schema, arguments, error, message):
    with pytest.raises(error, match=message):
        Pages(**{"column": "pdf", "data": DataSettings(), **arguments}).plan(pa.schema([ROW, LINEAGE, *schema]))
