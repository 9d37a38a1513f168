"""pandas in, pandas out."""

import pandas

from pipeline import run

lists = pandas.DataFrame({"id": [1, 2], "words": ["hare goose fox", "oats tea rice"]})
result = run(
    rows=lists,
    model="tiny",
    data={"prompt_template": "Put these words in alphabetical order: {{ words }}"},
    directory="outputs/pandas",
    progress="none",
)
answers = result.rows().collect().to_pandas()
print(answers[["id", "words", "completion"]].to_string(index=False))
