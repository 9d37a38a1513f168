"""Family `arithmetic`: add, subtract and multiply numbers of up to three digits, in digits or in words.

Small operands are answered directly. Larger ones are worked column by column: briefly by default, in sentences
where the prompt says `/think`. The result always stands last.
"""

from __future__ import annotations

from random import Random

from models.tiny.tasks.example import Example, Meta, Split, last_line, marked
from models.tiny.tasks.words import number_words

SYMBOL = {"add": "+", "subtract": "-", "multiply": "*"}
NAMED = {"add": "plus", "subtract": "minus", "multiply": "times"}
COLUMNS = ("Ones", "Tens", "Hundreds", "Thousands")
PROMPTS = {
    "add": ("What is {a} {op} {b}?", "Calculate {a} {op} {b}.", "Add {a} and {b}.", "Find the sum of {a} and {b}."),
    "subtract": (
        "What is {a} {op} {b}?",
        "Calculate {a} {op} {b}.",
        "Subtract {b} from {a}.",
        "How much is {a} {op} {b}?",
    ),
    "multiply": ("What is {a} {op} {b}?", "Calculate {a} {op} {b}.", "Multiply {a} by {b}."),
}
SHOPPING = {
    "add": (
        "{name} has {a} {item} and buys {b} more. How many {item} are there now?",
        "A shop sold {a} {item} on Monday and {b} on Tuesday. How many {item} in all?",
    ),
    "subtract": (
        "{name} has {a} {item} and gives away {b}. How many {item} are left?",
        "A shop had {a} {item} and sold {b}. How many {item} are left?",
    ),
}
GOODS = ("books", "coins", "stamps", "shells", "cards", "stones", "tickets", "pencils")
PEOPLE = ("Anna", "Omar", "Mei", "Leo", "Nora", "Tom", "Sara", "Ivan")


def evaluate(kind: str, a: int, b: int) -> int:
    """The result of `a kind b`."""
    return {"add": a + b, "subtract": a - b, "multiply": a * b}[kind]


def operands(rng: Random) -> tuple[str, int, int]:
    """A kind and two operands: subtraction never goes below zero, products stay in the tables up to twelve."""
    kind = rng.choices(("add", "subtract", "multiply"), (5, 5, 2))[0]
    if kind == "multiply":
        return kind, rng.randint(2, 12), rng.randint(2, 12)
    a, b = (rng.randint(1, rng.choice((20, 99, 999, 999))) for _ in range(2))
    return (kind, max(a, b), min(a, b)) if kind == "subtract" else (kind, a, b)


def direct(kind: str, a: int, b: int) -> bool:
    """Whether the operands are small enough to be answered without working."""
    return kind == "multiply" or max(a, b) <= 20


def columns(kind: str, a: int, b: int) -> list[tuple[str, int]]:
    """The worked columns from the ones upward: the sum as written, and its value."""
    steps, carry = [], 0
    for power in range(len(str(max(a, b)))):
        x, y = a // 10**power % 10, b // 10**power % 10
        if kind == "add":
            value = x + y + carry
            steps.append((f"{x}+{y}" + ("+1" if carry else ""), value))
            carry = int(value > 9)
        else:
            borrow = int(x - y - carry < 0)
            value = x + 10 * borrow - y - carry
            steps.append((f"{x + 10 * borrow}-{y}" + ("-1" if carry else ""), value))
            carry = borrow
    return steps


def brief(kind: str, a: int, b: int) -> str:
    """The columns on one line, such as "7+5=12,4+8+1=13,3+2+1=6"."""
    return ",".join(f"{left}={value}" for left, value in columns(kind, a, b))


def sentences(kind: str, a: int, b: int) -> str:
    """The columns in sentences, one a line."""
    lines, steps = [], columns(kind, a, b)
    for index, (left, value) in enumerate(steps):
        text = f"{COLUMNS[index]}: {left}={value}, write {value % 10}"
        if kind == "add" and value > 9:
            text += ", carry 1"
        if kind == "subtract" and int(left.split("-")[0]) > 9:
            text += ", borrow 1"
        lines.append(text + ".")
    return "\n".join(lines)


def worked(kind: str, a: int, b: int, think: bool, in_words: bool) -> str:
    """The whole answer to `a kind b`."""
    result = evaluate(kind, a, b)
    final = number_words(result) if in_words else str(result)
    sum_text = f"{a}{SYMBOL[kind]}{b}"
    if direct(kind, a, b):
        return f"{sum_text}={result}\nAnswer: {final}" if think else final
    if not think:
        return f"{sum_text}: {brief(kind, a, b)}\nAnswer: {final}"
    return f"{sum_text}\n{sentences(kind, a, b)}\nSo {sum_text}={result}.\nAnswer: {final}"


def make(rng: Random, split: Split) -> Example:
    """One question with its worked answer."""
    del split
    kind, a, b = operands(rng)
    in_words = rng.random() < 0.3
    think = rng.random() < 0.25
    shown = (number_words(a), number_words(b)) if in_words else (str(a), str(b))
    if kind in SHOPPING and rng.random() < 0.25:
        template = rng.choice(SHOPPING[kind])
    else:
        template = rng.choice(PROMPTS[kind])
    op = NAMED[kind] if in_words or rng.random() < 0.2 else SYMBOL[kind]
    prompt = template.format(a=shown[0], b=shown[1], op=op, name=rng.choice(PEOPLE), item=rng.choice(GOODS))
    meta = {"answer": evaluate(kind, a, b), "in_words": in_words}
    return Example("arithmetic", marked(rng, prompt, think), worked(kind, a, b, think, in_words), meta)


def check(prompt: str, completion: str, meta: Meta) -> bool:
    """Whether the last line is the result, in the form that the question used."""
    del prompt
    expected = number_words(meta["answer"]) if meta["in_words"] else str(meta["answer"])
    return last_line(completion).removeprefix("Answer:").strip() == expected
