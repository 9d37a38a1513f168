"""Write the prompt files that ship with the jobs: `python -m models.tiny.prompts` from the repository's root.

Both files hold held-out prompts of all families, in turn, as JSONL with the columns id, family, prompt, answer
(one right completion) and meta (what the checker needs, as a JSON string: its keys differ by family).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from models.tiny.tasks import Example, generate

EVALUATION_SEED = 7
EVALUATION_ROWS = 500
QUICKSTART_ROWS = 200


def row(identifier: str, example: Example) -> dict[str, str]:
    """One line of a prompt file."""
    return {
        "id": identifier,
        "family": example.family,
        "prompt": example.prompt,
        "answer": example.completion,
        "meta": json.dumps(example.meta),
    }


def write_rows(path: Path, prefix: str, chosen: Iterable[Example]) -> None:
    """Write examples as JSONL, numbered from zero."""
    lines = (json.dumps(row(f"{prefix}-{n:03d}", example)) for n, example in enumerate(chosen))
    path.write_text("\n".join(lines) + "\n")


def write_all(directory: Path) -> None:
    """Write quickstart.jsonl and evaluate_tiny.jsonl, which share no prompt."""
    drawn = generate(EVALUATION_SEED, EVALUATION_ROWS + QUICKSTART_ROWS, "heldout")
    write_rows(directory / "evaluate_tiny.jsonl", "eval", drawn[:EVALUATION_ROWS])
    write_rows(directory / "quickstart.jsonl", "quick", drawn[EVALUATION_ROWS:])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m models.tiny.prompts", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("jobs/data"), help="directory (default %(default)s)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write_all(options.out)


if __name__ == "__main__":
    main()
