"""Chat templates, incremental detokenisation and stop strings: the same text however it is cut."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.text import ChatTemplate, ChatTemplateError, IncrementalDetokenizer, StopStringMatcher


class Bytes:
    """A vocabulary whose token ids are bytes, with one special token."""

    special = 256

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == self.special else bytes([token_id])


def cut(text: str, at: Sequence[int]) -> list[str]:
    bounds = [0, *sorted({position % (len(text) + 1) for position in at}), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


def run(stops: Sequence[str], pieces: Sequence[str]) -> tuple[str, str | None]:
    matcher = StopStringMatcher(stops)
    text = "".join(matcher.push(piece) for piece in pieces)
    return text + matcher.finish(), matcher.matched


def expected(stops: Sequence[str], text: str) -> tuple[str, str | None]:
    """By definition: the stop that ends first, of those the longest."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


small = st.text(alphabet="ab\n", max_size=12)
stop_lists = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3)


@settings(max_examples=300, deadline=None)
@given(small, stop_lists, st.lists(st.integers(0, 100), max_size=6))
def test_a_stop_string_is_found_wherever_the_text_is_cut(text: str, stops: list[str], at: list[int]) -> None:
    assert run(stops, cut(text, at)) == expected(stops, text)


@pytest.mark.parametrize("text", ["one STOP two", "one STO", "SSTOP", "one STSTOP", "", "STOPSTOP", "no stops at all"])
def test_every_split_point_gives_the_same(text: str) -> None:
    stops = ["STOP", "TOPS"]
    whole = expected(stops, text)
    for first, second in itertools.combinations_with_replacement(range(len(text) + 1), 2):
        assert run(stops, [text[:first], text[first:second], text[second:]]) == whole


@given(small, stop_lists)
def test_no_more_is_held_back_than_a_proper_prefix_of_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopStringMatcher(stops)
    sent = matcher.push(text)
    if matcher.matched is None:
        held = text[len(sent) :]
        prefixes = {stop[:length] for stop in stops for length in range(1, len(stop))}
        assert held == "" or held in prefixes
        suffixes = [text[i:] for i in range(len(text))]
        assert len(held) == max((len(suffix) for suffix in suffixes if suffix in prefixes), default=0)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStringMatcher([""])


@settings(deadline=None)
@given(st.text(max_size=20), st.lists(st.integers(0, 100), max_size=8))
def test_characters_are_never_split(text: str, at: list[int]) -> None:
    data = text.encode()
    detokenizer = IncrementalDetokenizer(Bytes())
    bounds = [0, *sorted({position % (len(data) + 1) for position in at}), len(data)]
    pieces = [detokenizer.push(data[a:b]) for a, b in itertools.pairwise(bounds)]
    assert "".join(pieces) == text
    assert detokenizer.finish() == ""
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_a_character_that_never_ends_becomes_one_replacement() -> None:
    detokenizer = IncrementalDetokenizer(Bytes())
    assert detokenizer.push("é".encode()[:1]) == ""
    assert detokenizer.push([Bytes.special]) == ""
    assert detokenizer.finish() == "\ufffd"


TEMPLATES = [
    "{% for m in messages %}[{{ m.role }}] {{ m['content'] }}{{ eos_token }}\n{% endfor %}{{ add_generation_prompt }}",
    "{{ bos_token }}{% for m in messages %}\n    {% if loop.first %}\n  A{% endif %}{{ m | tojson }}{% endfor %}",
    "{{ {'é': '<&\\'\">', 'n': [1, none, true]} | tojson(indent=2) }}{{ strftime_now('%Y') }}",
    "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": 'Hé <b>"you"</b>'}]


@pytest.mark.parametrize("source", TEMPLATES)
def test_templates_render_as_transformers_renders_them(source: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered = render_jinja_template(
        [MESSAGES], chat_template=source, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
    )
    assert ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(MESSAGES) == rendered[0][0]


TRIMMING = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>{% endfor %}"


@pytest.mark.parametrize("source", [*TEMPLATES[:1], TEMPLATES[4], TRIMMING])
@pytest.mark.parametrize("ending", ["The answer", " The answer is ", "Two\n\n"])
def test_a_continued_message_ends_where_transformers_has_it_end(source: str, ending: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [*MESSAGES, {"role": "assistant", "content": ending}]
    rendered = render_jinja_template([messages], chat_template=source, continue_final_message=True, eos_token="</s>")
    ours = ChatTemplate(source, eos_token="</s>").render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert ours == rendered[0][0]
    assert messages[-1]["content"] == ending


def test_a_template_without_the_last_content_cannot_be_continued() -> None:
    with pytest.raises(ChatTemplateError, match="cannot be continued"):
        ChatTemplate("{{ messages[0].content }}").render(MESSAGES, continue_final_message=True)


def test_variables_are_the_templates_own_and_more() -> None:
    template = ChatTemplate(
        "{% set x = 1 %}{{ x }}{% if enable_thinking is false %}quiet{% endif %}{{ messages | length }}"
    )
    assert template.variables == {"enable_thinking", "messages"}
    assert template.render(MESSAGES) == "12"
    assert template.render(MESSAGES, variables={"enable_thinking": False, "messages": []}) == "1quiet2"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.append(1) }}", "unsafe|not callable|access"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ 1 + messages }}", "cannot render"),
        ("{{ nothing.at.all }}", "undefined"),
    ],
)
def test_a_refusing_template_says_why(source: str, says: str) -> None:
    with pytest.raises(ChatTemplateError, match=says):
        ChatTemplate(source).render(MESSAGES)


def test_a_broken_template_is_noticed_when_it_is_read() -> None:
    with pytest.raises(ChatTemplateError, match="line 2"):
        ChatTemplate("fine\n{% for %}")
