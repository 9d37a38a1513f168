"""Write jobs/data/judge_labels.jsonl: labels for the column `right` of job=judge, whether the answer `one` is right.

    .venv/bin/python -m pipeline job=judge
    .venv/bin/python docs/judge_labels.py outputs/judge

Of the first 120 rows 60 are drawn. The reviewer `checker` is the program that knows right answers (models/tiny/tasks);
`second` says of half of them the same, but for one in ten, which is drawn. So they show a procedure: these are no
people, and verdicts of the small model mean little. They are of the answers that it gives with the job as it is.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from models.tiny.tasks import check
from pipeline import PROJECT, load

SEED, OF, LABELLED, TWICE, OTHERWISE = 0, 120, 60, 30, 0.1
FILE = PROJECT / "jobs/data/judge_labels.jsonl"


def labels(directory: Path) -> str:
    """Return the file for the run of job=judge in `directory`."""
    wanted = ("id", "family", "prompt", "one", "meta")
    rows = load(directory).rows().sort("row").head(OF).select(wanted).collect().rows()
    draw = random.Random(SEED)
    chosen = sorted(draw.sample(range(OF), LABELLED))
    said = {i: check(*rows[i][1:]) for i in chosen}
    lines = [(rows[i][0], "checker", said[i]) for i in chosen]
    lines += [(rows[i][0], "second", said[i] != (draw.random() < OTHERWISE)) for i in chosen[:TWICE]]
    words = ("no", "yes")
    return "".join(
        json.dumps({"id": i, "reviewer": who, "label": words[is_right]}) + "\n" for i, who, is_right in lines
    )


if __name__ == "__main__":
    FILE.write_text(labels(Path(sys.argv[1])), encoding="utf-8")
