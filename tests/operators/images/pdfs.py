"""PDFs by hand."""

from __future__ import annotations

A4 = (595.0, 842.0)


def pdf(*objects: bytes, more: bytes = b"") -> bytes:
    """Write a PDF of numbered objects, the first of them its catalog. `more`: entries of its trailer."""
    out, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    trailer = b"trailer<</Size %d/Root 1 0 R%s>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, more, len(out))
    return out + head + table + trailer


def stream(content: bytes, entries: bytes = b"") -> bytes:
    return b"<</Length %d%s>>stream\n%s\nendstream" % (len(content), entries, content)


def pages(
    *contents: bytes, size: tuple[float, float] = A4, resources: bytes = b"", others: tuple[bytes, ...] = ()
) -> bytes:
    """Write a PDF of pages of these contents; `others` are objects from number 3 on."""
    first = 3 + len(others)
    kids = b" ".join(b"%d 0 R" % (first + 2 * i) for i in range(len(contents)))
    font = b"/Font<</F<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>"
    made = []
    for i, content in enumerate(contents):
        box = b"%g %g" % size
        made.append(
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 %s]/Contents %d 0 R/Resources<<%s%s>>>>"
            % (box, first + 2 * i + 1, font, resources)
        )
        made.append(stream(content))
    top = b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, len(contents))
    return pdf(b"<</Type/Catalog/Pages 2 0 R>>", top, *others, *made)


def text(line: str) -> bytes:
    return b"BT /F 24 Tf 50 700 Td (%s) Tj ET" % line.encode()


def drawing_of_drawings(levels: int, times: int = 10) -> bytes:
    """Write a PDF of one page that draws a square `times` to the power of `levels` times, and of text before it."""
    others = []
    for level in range(levels):
        inner = b"/Resources<</XObject<</D %d 0 R>>>>" % (4 + level) if level < levels - 1 else b""
        content = b"/D Do " if inner else b"0 0 9 9 re f "
        others.append(stream(content * times, b"/Type/XObject/Subtype/Form/BBox[0 0 600 600]" + inner))
    resources = b"/XObject<</D 3 0 R>>"
    return pages(text("before"), b"/D Do", text("after"), resources=resources, others=tuple(others))
