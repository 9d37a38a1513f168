"""Write the accuracy of an evaluation into the model card: `python -m models.tiny.card outputs/evaluate_tiny`."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from models.tiny.score import accuracy

CARD = Path(__file__).with_name("MODEL_CARD.md")
_TABLE = re.compile(r"(<!-- accuracy -->\n).*?(<!-- end -->)", re.DOTALL)


def table(data: Path) -> str:
    """The accuracy by family of the shards in `data`, as Markdown."""
    lines = ["| family | right | of | accuracy |", "|---|---|---|---|"]
    lines += [f"| {f} | {right} | {rows} | {right / rows:.1%} |" for f, right, rows in accuracy(data).iter_rows()]
    return "\n".join(lines) + "\n"


def filled(card: str, data: Path) -> str:
    """`card` with the table of `data` between its marks.

    Raises:
        ValueError: the card has no marks.
    """
    if not _TABLE.search(card):
        raise ValueError("the card has no place for the table: <!-- accuracy --> ... <!-- end -->")
    return _TABLE.sub(lambda found: found[1] + table(data) + found[2], card)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m models.tiny.card", description=__doc__)
    parser.add_argument("results", type=Path, help="output directory of job=evaluate_tiny")
    data = parser.parse_args().results / "data"
    if not any(data.glob("*.parquet")):
        print(f"{data} has no results; run first: python -m pipeline job=evaluate_tiny", file=sys.stderr)
        return 2
    CARD.write_text(filled(CARD.read_text(), data))
    print(f"{CARD.name} holds the accuracy of {data}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
