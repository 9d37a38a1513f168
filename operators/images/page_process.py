"""PageProcess: renders the pages of PDFs, which strangers wrote, in a process with limits.

Within 2 KB a PDF can ask for gigabytes and hours (a drawing of ten drawings of ten drawings ...), pdfium ends the
process where it gets no memory, and it is not made for threads. A process has limits and can be begun again: it takes
0.2 s to begin, and 0.1 ms a page for its pipe, where rendering and encoding take 40.
"""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
import weakref
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, NamedTuple

from operators.images.read import BadImage
from pipeline import PACKAGES
from pipeline.api.errors import ConfigError, install

CPU_S = 60.0
MEMORY_MIB = 2048
NO_MEMORY = 3
"""Exit code of the process (page_child.NO_MEMORY)."""


def require_pdfium() -> None:
    """Raise ConfigError if what renders PDFs is not installed."""
    for package in ("pypdfium2", "PIL"):
        if find_spec(package) is None:
            raise ConfigError(f"reading PDFs needs {package}: {install('images')}")


class Page(NamedTuple):
    """A page of a PDF: a PNG, and the text of its text layer."""

    png: bytes
    text: str


class PageProcess:
    """Opens one PDF after the other, and renders pages of the one that is open. For one thread.

    Args:
        cpu_s: seconds of CPU for opening and for each page, which pass for the process only.
        memory_mib: address space of the process, which has a PDF's bytes twice, where it was given them.
    """

    def __init__(self, cpu_s: float = CPU_S, memory_mib: int = MEMORY_MIB) -> None:
        self._cpu_s, self._memory_mib = cpu_s, memory_mib
        self._process: subprocess.Popen[bytes] | None = None
        self._source: bytes | str = ""
        self._is_open = False

    def open(self, source: bytes | str) -> int:
        """Open a PDF, its content or the path of its file, and return the number of its pages. Raises BadImage, whose
        message completes "NAME ...", if it cannot be read."""
        self._source, self._is_open = source, False
        pages: int = self._ask({"open": source})[0]["pages"]
        self._is_open = True
        return pages

    def page(self, number: int, side: int, most_dpi: float, least_dpi: float) -> Page:
        """Render a page.

        Args:
            number: from 1.
            side: pixels of the longer side, or fewer:
            most_dpi: dots per inch that are not exceeded.
            least_dpi: a page that would have fewer is refused.

        Raises:
            BadImage: it cannot be rendered; the message completes "page N ...".
            PageEnded: it has ended the process.
        """
        if not self._is_open:  # the process is another one than that which opened it
            self.open(self._source)
        answer, png = self._ask({"page": number - 1, "side": side, "most_dpi": most_dpi, "least_dpi": least_dpi})
        return Page(png, answer["text"])

    def close(self) -> None:
        """End the process. What is not closed ends with this object."""
        if self._process is not None:
            self._end()
            self._process = None
            self._is_open = False

    def _ask(self, question: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(pickle.dumps(question, pickle.HIGHEST_PROTOCOL))
            process.stdin.flush()
            line = process.stdout.readline()
            if line.endswith(b"\n"):
                answer = json.loads(line)
                png = process.stdout.read(answer["bytes"])
                if "error" in answer:
                    raise BadImage(answer["error"])
                if len(png) == answer["bytes"]:
                    return answer, png
        code = process.wait()
        self.close()
        if code == -signal.SIGPROF:
            raise PageEnded(f"takes more than {self._cpu_s:g} s")
        if code == NO_MEMORY or code < 0:  # pdfium ends the process by a signal
            raise PageEnded(f"needs more than {self._memory_mib} MiB of memory, or pdfium fails over it")
        raise PageEnded(f"ends the process that renders it, with exit code {code}")

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "operators.images.page_child", str(self._cpu_s), str(self._memory_mib)],
            cwd=PACKAGES,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process
        )
        self._end = weakref.finalize(self, _end, self._process)
        return self._process


class PageEnded(BadImage):
    """A page, or the opening of a PDF, has ended the process; the message says why."""


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
