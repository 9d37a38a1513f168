"""The small instruct model that ships with the project: its corpus, tokenizer, training script and export."""
