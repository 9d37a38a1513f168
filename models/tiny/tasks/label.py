"""Family `label`: name the sentiment or the topic of a product review."""

from __future__ import annotations

from random import Random

from models.tiny.tasks.example import Example, Meta, Split, last_line, marked
from models.tiny.tasks.reviews import TOPICS, sentiment_review, topic_review

SENTIMENTS = ("positive", "negative", "mixed")
PROMPTS = {
    "sentiment": (
        "Label the sentiment of this review as positive, negative or mixed: {review}",
        "Is this review positive, negative or mixed?\n{review}",
        "Review: {review}\nSentiment (positive, negative or mixed):",
    ),
    "topic": (
        "Label the topic of this review as delivery, price, quality or service: {review}",
        "Is this review about delivery, price, quality or service?\n{review}",
        "Review: {review}\nTopic (delivery, price, quality or service):",
    ),
}


def make(rng: Random, split: Split) -> Example:
    """A review and its label, or with `/think` the sentences that decide it and then the label."""
    del split
    kind = rng.choice(tuple(PROMPTS))
    label = rng.choice(SENTIMENTS if kind == "sentiment" else TOPICS)
    review, told = (sentiment_review if kind == "sentiment" else topic_review)(rng, label)
    think = rng.random() < 0.2
    completion = label
    if think:
        joint = "is" if kind == "sentiment" else "is about"
        noted = "\n".join(f'"{sentence}" {joint} {value}.' for sentence, value in told)
        completion = f"{noted}\nLabel: {label}"
    prompt = rng.choice(PROMPTS[kind]).format(review=review)
    return Example("label", marked(rng, prompt, think), completion, {"label": label})


def check(prompt: str, completion: str, meta: Meta) -> bool:
    """Whether the last line is the label."""
    del prompt
    return bool(last_line(completion).removeprefix("Label:").strip() == meta["label"])
