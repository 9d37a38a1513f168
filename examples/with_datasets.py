"""A dataset of Hugging Face in, a dataset out."""

import datasets

from pipeline import run

lists = datasets.Dataset.from_dict({"id": [1, 2], "words": ["hare goose fox", "oats tea rice"]})
result = run(
    rows=lists,
    model="tiny",
    data={"prompt_template": "Put these words in alphabetical order: {{ words }}"},
    directory="outputs/datasets",
    progress="none",
)
answers = result.dataset().select_columns(["id", "words", "completion"])
print(*answers, sep="\n")
