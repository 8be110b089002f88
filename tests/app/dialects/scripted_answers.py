"""What the model of the LangChain suite is made to say, where a test asserts what a capable model would say.

A tiny model with random weights answers most of the suite by itself. An entry here names the tests that it cannot
pass, why, and what it says instead: `scripted_engine.py` raises the logits of these tokens in a real engine, before its
grammar mask and its sampler. Invariant: each entry is said by some test, and each test it names says it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Script:
    """Said where the prompt's text matches `when`, and none of an earlier script."""

    tests: tuple[str, ...]
    reason: str
    when: str
    says: str


def call(name: str, arguments: dict[str, object]) -> str:
    text = json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>'


JOKE: dict[str, object] = {"setup": "Why do cats sit on keyboards?", "punchline": "To keep an eye on the mouse."}

SCRIPTS = (
    Script(
        tests=("test_tool_calling", "test_tool_calling_async"),
        reason="asserts the argument 3, which is to be read out of the question",
        when=r"magic_function\(3\)",
        says=call("magic_function", {"input": 3}),
    ),
    Script(
        tests=("test_tool_calling_with_no_arguments",),
        reason="asserts one call and no second one, which parallel calls allow; random weights go on",
        when=r"magic_function_no_args\(\)",
        says=call("magic_function_no_args", {}),
    ),
    Script(
        tests=("test_tool_choice",),
        reason="asserts calls whose arguments are whole; random weights pad them with white space up to max_tokens",
        when=r"Hello!<",
        says=call("magic_function", {"input": 3}),
    ),
    Script(
        tests=("test_bind_runnables_as_tools",),
        reason="asserts an argument that is a string and not empty; random weights never end a string",
        when=r"generate a Pirate greeting",
        says=call("greeting_generator", {"answer_style": "pirate"}),
    ),
    Script(
        tests=("test_agent_loop",),
        reason="asserts that the model chooses to call the tool, which nothing forces here",
        when=r"weather in San Francisco, CA\?(?!.*sunny)",
        says=call("get_weather", {"location": "San Francisco, CA"}),
    ),
    Script(
        tests=("test_unicode_tool_call_integration",),
        reason="asserts a name that is to be copied from the question",
        when=r"你好啊集团",
        says=call("unicode_customer", {"customer_name": "你好啊集团", "description": "A technology company"}),
    ),
    Script(
        tests=("test_unicode_tool_call_integration",),
        reason="asserts a name that is to be copied from the question",
        when=r"こんにちは株式会社",
        says=call("unicode_customer", {"customer_name": "こんにちは株式会社", "description": "A company"}),
    ),
    Script(
        tests=("test_structured_output_pydantic_2_v1",),
        reason="asserts arguments that are whole; random weights never end a string",
        when=r'"name": "Joke".*joke about cats',
        says=call("Joke", JOKE),
    ),
    Script(
        tests=(
            "test_structured_output",
            "test_structured_output_async",
            "test_structured_output_pydantic_2_v1",
            "test_structured_output_optional_param",
            "test_json_mode",
        ),
        reason="asserts whole JSON, its keys in JSON mode by the question alone; random weights never end a string",
        when=r"joke about cats",
        says=json.dumps(JOKE),
    ),
)


def script_for(prompt: str) -> Script | None:
    """The first script whose sign is in the prompt."""
    return next((script for script in SCRIPTS if re.search(script.when, prompt, re.DOTALL)), None)
