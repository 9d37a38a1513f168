"""Write expected.json: what `transformers` makes of chat templates, for tests/templates/test_templates.py.

    python -m venv ENV && ENV/bin/pip install torch==2.13.0 transformers==5.23.0 jinja2==3.1.6
    git clone https://github.com/ggml-org/llama.cpp && git -C llama.cpp checkout COMMIT
    ENV/bin/python -m tests.templates.make --templates llama.cpp/models/templates --commit COMMIT

Each template of the folder and of `OWN` (cases.py) is rendered for every conversation of `CASES`. The templates of the
folder belong to their models: neither they nor texts made of them are kept, but the SHA-256 of both. Of our own the
texts are kept. Where a template raises, the kind of the error is kept. `--show NAME CASE` prints the text or the error.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.templates.cases import CASES, DATE, OWN, SPECIAL, mended

EXPECTED = Path(__file__).with_name("expected.json")


def sha256(text: str) -> str:
    """Return the SHA-256 of a text in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def rendered(template: str, case: str) -> tuple[str | None, str]:
    """Return what `transformers` renders, None if it raises, and the error, which is empty if it does not.

    After a TypeError the text is that of the mended case (cases.py), if there is one.
    """
    try:
        return _rendered(template, CASES[case]), ""
    except TypeError as error:
        said = f"TypeError: {error}"
        with suppress(Exception):
            return _rendered(template, mended(CASES[case])), said
        return None, said
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def _rendered(template: str, arguments: dict[str, Any]) -> str:
    from transformers.utils import chat_template_utils as theirs

    class Clock:
        @staticmethod
        def now() -> datetime.date:
            return datetime.date.fromisoformat(DATE)

    theirs.datetime = Clock  # for strftime_now
    given = {key: value for key, value in arguments.items() if key != "messages"}
    begins = not given.get("continue_final_message")
    texts, _ = theirs.render_jinja_template(
        [arguments["messages"]], chat_template=template, add_generation_prompt=begins, **SPECIAL, **given
    )
    return str(texts[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--templates", type=Path, required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--show", nargs=2, metavar=("NAME", "CASE"))
    given = parser.parse_args()
    if given.show:
        name, case = given.show
        text, error = rendered(OWN[name] if name in OWN else (given.templates / name).read_text("utf-8"), case)
        print(error if text is None else text)
        return
    import transformers

    found: dict[str, Any] = {
        "source": f"https://github.com/ggml-org/llama.cpp models/templates at {given.commit}",
        "made_by": f"transformers {transformers.__version__}, render_jinja_template",
        "own": {name: {case: _kept(*rendered(text, case), whole=True) for case in CASES} for name, text in OWN.items()},
        "templates": {},
    }
    for path in sorted(given.templates.glob("*.jinja")):
        template = path.read_text("utf-8")
        cases = {case: _kept(*rendered(template, case), whole=False) for case in CASES}
        found["templates"][path.name] = {"sha256": sha256(template), "cases": cases}
    EXPECTED.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _kept(text: str | None, error: str, *, whole: bool) -> dict[str, str]:
    kept = {"error": error if whole else error.partition(":")[0]} if error else {}
    return kept if text is None else {**kept, **({"text": text} if whole else {"sha256": sha256(text)})}


if __name__ == "__main__":
    main()
