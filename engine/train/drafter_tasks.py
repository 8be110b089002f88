"""What the model is asked for beside the questions that it makes up itself.

Owns words alone: openings of user turns, system prompts, tasks over a text, follow-up requests. Invariant: every task
has `{text}` once and nothing else in braces.
"""

from __future__ import annotations

OPENINGS = (
    "Write",
    "How do I",
    "How does",
    "What is",
    "What are",
    "Explain",
    "Can you",
    "I need",
    "I want to",
    "Give me",
    "Why",
    "Please",
    "Describe",
    "List",
    "Tell me about",
    "Compare",
    "Help me",
    "Create",
    "I have a",
    "Who",
    "Write a Python function that",
    "Write a function in JavaScript that",
    "Write a story about",
    "Write an e-mail to",
    "Summarize",
    "In the",
    "My",
    "The",
)

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a concise assistant. Answer in a few sentences.",
    "You are an expert programmer. Write clean code and explain it briefly.",
    "You are a patient teacher.",
    "You answer with facts and say when you are not sure.",
    "You are an editor. Change only what you are asked to change.",
    "You are a customer support agent.",
    "Answer in JSON when data is asked for.",
)

TASKS = (
    "Summarise the following text in two sentences.\n\n{text}",
    "Summarize this text:\n\n{text}",
    "Summarise the text below as a short list of bullet points.\n\n{text}",
    "{text}\n\nGive a one-paragraph summary of the text above and quote its most important sentence.",
    "Quote the two sentences of this text that matter most, word for word, and say why.\n\n{text}",
    "Rewrite the following text in a more formal style.\n\n{text}",
    "Rewrite this text so that a child understands it.\n\n{text}",
    "Rewrite the following text in the past tense. Keep everything else as it is.\n\n{text}",
    "Make the following text shorter, but keep its wording where you can.\n\n{text}",
    "Correct the spelling and grammar of this text and return the whole text.\n\n{text}",
    "Repeat the following text word for word.\n\n{text}",
    "Copy this text, but write every number as a word.\n\n{text}",
    "Repeat the text below exactly, but replace the first sentence with a better one.\n\n{text}",
    "Return the following text with a title added at the top. Change nothing else.\n\n{text}",
    "Format this text as a Markdown document with headings.\n\n{text}",
    "Extract the names, places and dates from this text as a JSON object.\n\n{text}",
    'Read the text and fill in this JSON object: {{"topic": "", "people": [], "places": [], "facts": []}}\n\n{text}',
    "List every fact in the following text as a JSON array of strings.\n\n{text}",
    "{text}\n\nWhat are the three main points of this text? Quote the passage for each.",
    "Answer with words from the text: what is it about, and what does it conclude?\n\n{text}",
    "Continue this text in the same style:\n\n{text}",
    "Turn this text into a conversation between two people.\n\n{text}",
    "Translate this text into French.\n\n{text}",
    "Write five questions about the following text, and answer each.\n\n{text}",
)

CODE_TASKS = (
    "Add comments to this code and return all of it.\n\n{text}",
    "Add type hints and docstrings to this code. Return the complete code.\n\n{text}",
    "Rename the variables in this code so that they are clearer, and show the whole code.\n\n{text}",
    "Rename the main function to process_data and return the complete code.\n\n{text}",
    "Find the bugs in this code and give the corrected version in full.\n\n{text}",
    "Explain what this code does, line by line.\n\n{text}",
    "Add error handling to this code. Show the full code.\n\n{text}",
    "Rewrite this code in another programming language.\n\n{text}",
)

FOLLOW_UPS = (
    "Make it shorter.",
    "Can you give me an example?",
    "Say that again in simpler words.",
    "Write that as a list.",
    "Continue.",
    "Please explain the last part in more detail.",
    "Rewrite your answer in a friendlier tone.",
    "Repeat your answer, but leave out the introduction.",
    "Summarize what you just said.",
    "Thank you. What else should I know?",
    "Can you write that as a table?",
    "Give me the same answer as a JSON object.",
    "Now write the same thing for a different audience.",
    "Are you sure? Check your answer and write it again.",
)


def is_code(text: str) -> bool:
    """Whether the text looks like a program."""
    return "```" in text or "\ndef " in text or text.startswith("def ")


def fill(task: str, text: str) -> str:
    """The task over this text."""
    return task.format(text=text.strip())
