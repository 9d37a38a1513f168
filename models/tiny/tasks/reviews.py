"""Templated product reviews: sentences by topic and polarity."""

from __future__ import annotations

from random import Random

from models.tiny.tasks.words import PRODUCTS

TOPICS = ("delivery", "price", "quality", "service")
SENTENCES = {
    ("delivery", "positive"): (
        "The {p} arrived a day early.",
        "Shipping was fast and the box was intact.",
        "The parcel came on time.",
        "The courier brought the {p} right to my door.",
    ),
    ("delivery", "negative"): (
        "The {p} arrived {n} days late.",
        "Shipping took forever and the box was crushed.",
        "The parcel got lost twice.",
        "The courier left the {p} in the rain.",
    ),
    ("price", "positive"): (
        "The {p} is worth every cent.",
        "At {n} euros it is a bargain.",
        "I paid far less than in the shop.",
        "Such a {p} rarely costs so little.",
    ),
    ("price", "negative"): (
        "The {p} is far too expensive.",
        "Asking {n} euros for this is a rip-off.",
        "I paid much more than in the shop.",
        "Such a {p} should never cost so much.",
    ),
    ("quality", "positive"): (
        "The {p} feels solid and well made.",
        "After {n} weeks it still works perfectly.",
        "The material is strong and looks great.",
        "I have never owned a better {p}.",
    ),
    ("quality", "negative"): (
        "The {p} feels cheap and badly made.",
        "After {n} weeks it broke.",
        "The material is thin and looks awful.",
        "I have never owned a worse {p}.",
    ),
    ("service", "positive"): (
        "Support answered within {n} minutes.",
        "The staff were kind and helped me set up the {p}.",
        "They replaced my {p} without any fuss.",
        "The hotline solved my problem at once.",
    ),
    ("service", "negative"): (
        "Support ignored me for {n} days.",
        "The staff were rude and knew nothing about the {p}.",
        "They refused to replace my {p}.",
        "The hotline hung up on me.",
    ),
}
OPENERS = {
    "positive": ("I love this {p}.", "Great {p}!", "Very happy with it.", "What a pleasant surprise."),
    "negative": ("I regret buying this {p}.", "Terrible {p}.", "Very disappointed.", "What a waste."),
    "neutral": (
        "I bought this {p} in {m}.",
        "My {f} asked me to review this {p}.",
        "This is my {o} {p}.",
        "I use the {p} every day.",
    ),
}
MONTHS = ("January", "March", "April", "May", "June", "August", "October", "December")
FAMILY = ("brother", "sister", "mother", "father", "neighbor", "friend")
ORDINALS = ("first", "second", "third")


def filled(rng: Random, sentence: str, product: str) -> str:
    """A sentence with its slots filled."""
    return sentence.format(
        p=product,
        n=rng.randint(2, 30),
        m=rng.choice(MONTHS),
        f=rng.choice(FAMILY),
        o=rng.choice(ORDINALS),
    )


def sentiment_review(rng: Random, label: str) -> tuple[str, list[tuple[str, str]]]:
    """A review of the given sentiment, and its telling sentences, each with its polarity."""
    product = rng.choice(PRODUCTS)
    polarities = ["positive", "negative"] if label == "mixed" else [label] * rng.randint(1, 3)
    rng.shuffle(polarities)
    topics = rng.sample(TOPICS, len(polarities))
    told = [
        (filled(rng, rng.choice(SENTENCES[topic, polarity]), product), polarity)
        for topic, polarity in zip(topics, polarities, strict=True)
    ]
    sentences = [sentence for sentence, _ in told]
    if label == "mixed" or rng.random() < 0.5:
        sentences.insert(0, filled(rng, rng.choice(OPENERS["neutral"]), product))
    elif rng.random() < 0.5:
        opener = filled(rng, rng.choice(OPENERS[label]), product)
        sentences.insert(0, opener)
        told.insert(0, (opener, label))
    return " ".join(sentences), told


def topic_review(rng: Random, label: str) -> tuple[str, list[tuple[str, str]]]:
    """A review about one topic, and its telling sentences, each with its topic."""
    product, polarity = rng.choice(PRODUCTS), rng.choice(("positive", "negative"))
    chosen = rng.sample(SENTENCES[label, polarity], rng.randint(1, 2))
    told = [(filled(rng, sentence, product), label) for sentence in chosen]
    opener = filled(rng, rng.choice(OPENERS[rng.choice((polarity, "neutral"))]), product)
    return " ".join([opener, *(sentence for sentence, _ in told)]), told
