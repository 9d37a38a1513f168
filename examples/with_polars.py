"""polars in, polars out; lazy frames too."""

import polars

from pipeline import run

lists = polars.LazyFrame({"id": [1, 2], "words": ["hare goose fox", "oats tea rice"]})
result = run(
    rows=lists,
    model="tiny",
    data={"prompt_template": "Put these words in alphabetical order: {{ words }}"},
    directory="outputs/polars",
    progress="none",
)
answers = result.rows().select("id", "words", "completion").collect()
print(answers)
