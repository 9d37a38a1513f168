"""The process of `page_process`: opens PDFs and renders their pages, by pdfium.

It reads pickles from stdin, each one question, and answers on stdout with a line of JSON, behind which come the bytes
of a picture. It imports neither numpy nor Arrow, which a process that is often begun anew has no need of.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pypdfium2
from PIL import Image
from pypdfium2 import raw

from operators.images.kinds import HEAD, format_of, kind_of

NO_MEMORY = 3
"""Exit code of the process."""
COMPRESSION = 1
"""Of PNG: 6 takes twice the time for half the bytes."""
_POINTS_PER_INCH = 72
_JUST_BELOW = 1 - 1e-9
"""So that pdfium, which rounds up, does not make a side longer by the error of a product."""
_BROKEN_WORD = "\ufffe"
"""Stands in pdfium's texts for a hyphen and the end of the line behind it."""


def main() -> None:
    """Answer until stdin is closed."""
    cpu_s, memory_mib = (float(value) for value in sys.argv[1:])
    with suppress(ValueError, OSError):  # some systems have no such limit
        limit = int(memory_mib) << 20
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process
    out = sys.stdout.buffer
    try:
        for answer, picture in _answers(cpu_s):
            out.write(json.dumps({**answer, "bytes": len(picture)}).encode() + b"\n" + picture)
            out.flush()
    except MemoryError:
        sys.exit(NO_MEMORY)


def _answers(cpu_s: float) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield the answer to each question, with the bytes of a picture or none."""
    document: Any = None
    with suppress(EOFError):
        while True:
            signal.setitimer(signal.ITIMER_PROF, 0)
            question = pickle.load(sys.stdin.buffer)
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
            if "open" in question:
                if document is not None:
                    document.close()
                document, answer = _opened(question["open"])
                yield answer, b""
            else:
                yield _page(document, **question)


def _opened(source: bytes | str) -> tuple[Any, dict[str, Any]]:
    """Open a PDF, its content or its path; return it, or None, and the answer."""
    raw.FPDF_LoadMemDocument(b"", 0, None)  # else a failure for which pdfium has no reason would have that of the last
    try:
        document = pypdfium2.PdfDocument(source)
    except pypdfium2.PdfiumError as error:
        if error.err_code in (raw.FPDF_ERR_PASSWORD, raw.FPDF_ERR_SECURITY):
            return None, {"error": "is encrypted; save it without a password"}
        try:
            return None, {"error": _no_pdf(source[:HEAD] if isinstance(source, bytes) else _head(source))}
        except OSError as failure:
            return None, {"error": f"cannot be opened: {failure.strerror}"}
    except (OSError, ValueError) as error:
        return None, {"error": f"cannot be opened: {error}"}
    with suppress(Exception):  # a form that is filled in shows what was filled in
        document.init_forms()
    return document, {"pages": len(document)}


def _head(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(HEAD)


def _no_pdf(head: bytes) -> str:
    """Say what a file is that pdfium does not read, by its first bytes."""
    if not head:
        return "is empty (0 bytes); fetch it again"
    if head.lstrip().startswith(b"%PDF-"):
        return "is damaged or cut off: pdfium cannot read it as a PDF; fetch it again, or open it elsewhere and save it"
    if kind := kind_of(head):
        return f"is {kind[0]}, and no PDF"
    if name := format_of(head):
        return f"is a picture ({name}), and no PDF; give pictures to data.image_column"
    return "is no PDF"


def _page(document: Any, page: int, side: int, most_dpi: float, least_dpi: float) -> tuple[dict[str, Any], bytes]:
    """Render page number `page`, from 0; see `page_process.PageProcess.page`."""
    try:
        opened = document[page]
        width, height = opened.get_size()
        longest = max(width, height)
        if not (math.isfinite(longest) and min(width, height) > 0):
            return {"error": "has no size"}, b""
        scale = min(side / longest, most_dpi / _POINTS_PER_INCH)
        if (dpi := scale * _POINTS_PER_INCH) < least_dpi:
            return {"error": f"would have {dpi:.3g} dots per inch, below least_dpi={least_dpi:g}"}, b""
        bitmap = opened.render(scale=scale * _JUST_BELOW)
        picture = _png(bitmap.to_pil())
        bitmap.close()
        texts = opened.get_textpage()
        text = texts.get_text_range()
        texts.close()
        opened.close()
    except MemoryError:
        raise
    except Exception as error:
        return {"error": f"cannot be rendered: {error or type(error).__name__}"}, b""
    return {"text": text.replace("\r\n", "\n").replace(_BROKEN_WORD, "").replace("\0", "")}, picture


def _png(picture: Image.Image) -> bytes:
    """Return a picture as PNG, of gray if it has no color."""
    red, green, blue = picture.convert("RGB").split()
    is_gray = red.tobytes() == green.tobytes() == blue.tobytes()
    file = io.BytesIO()
    (red if is_gray else picture).save(file, "PNG", compress_level=COMPRESSION)
    return file.getvalue()


if __name__ == "__main__":
    main()
