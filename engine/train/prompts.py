"""What the model is asked, so that it writes its own calibration text.

Owns the topics and the rendering of a chat template for one question. Knows nothing of engines. Invariant: a template
that cannot be rendered is not half used: the question then stands as plain text, and `has_template` says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.vocab import Vocab

TOPICS = (
    "Explain how rain forms.",
    "Write a short story about a lighthouse keeper.",
    "What were the main causes of the French Revolution?",
    "Give me a recipe for vegetable soup.",
    "Write a Python function that reverses a list, and explain it.",
    "How do vaccines work?",
    "Describe a day in the life of a nurse.",
    "Write a letter to a landlord about a broken heater.",
    "What is the difference between a virus and a bacterium?",
    "Tell me about the city of Kyoto.",
    "A train travels 180 km in 2.5 hours. What is its speed? Explain each step.",
    "Write a poem about autumn.",
    "How should I prepare for a job interview?",
    "Summarise the plot of Romeo and Juliet.",
    "What is machine learning?",
    "Give five tips for saving money.",
    "Explain the rules of chess to a beginner.",
    "Write a dialogue between a teacher and a pupil about honesty.",
    "Why is the sky blue?",
    "Describe the water cycle to a ten-year-old.",
    "What are the health benefits of walking?",
    "Write an e-mail that politely declines a meeting.",
    "How does a bicycle stay upright?",
    "List the planets and say something about each.",
    "What is inflation, and why does it matter?",
    "Write a product description for a wooden chair.",
    "How do I plant tomatoes?",
    "Explain what a database index is.",
    "Tell me a fable about a fox and a crow.",
    "What happened during the Apollo 11 mission?",
    "Say this in Spanish and explain the grammar: The children are playing in the garden.",
    "Compare solar and wind power.",
    "Write a JSON object that describes a library book, and explain its fields.",
    "What should a first-aid kit contain?",
    "Explain the difference between speed and velocity.",
    "Write a short speech for a friend's wedding.",
    "How does a refrigerator work?",
    "Describe the life cycle of a butterfly.",
    "What is the role of the European Parliament?",
    "Write a SQL query that counts orders by customer, and explain it.",
)


class Prompter:
    """Token ids of each topic as the model expects a question."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._template = compile_template(vocab)
        self.has_template = self._template is not None

    def prompt(self, index: int) -> list[int]:
        """The ids of topic `index` with the opening of the answer."""
        if self._template is None:
            return self._vocab.encode(TOPICS[index], add_special_tokens=True)
        return self._vocab.encode(render(self._template, self._vocab, [_question(TOPICS[index])]))


def compile_template(vocab: Vocab) -> jinja2.Template | None:
    """The chat template; None where there is none or a question cannot be rendered with it."""
    if vocab.chat_template is None:
        return None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda pattern: datetime(2026, 1, 1).strftime(pattern)  # noqa: DTZ001 - fixed
    try:
        template = environment.from_string(vocab.chat_template)
        render(template, vocab, [_question(TOPICS[0])])
    except Exception:  # a template is a program, and can raise anything
        return None
    return template


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _question(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def render(
    template: jinja2.Template, vocab: Vocab, messages: Sequence[Mapping[str, str]], *, answer_next: bool = True
) -> str:
    """The text of a conversation, with the opening of an answer if that comes next. Raises what a template raises."""
    return template.render(
        messages=list(messages),
        add_generation_prompt=answer_next,
        bos_token=vocab.bos_token or "",
        eos_token=vocab.eos_token or "",
        tools=None,
        documents=None,
    )
