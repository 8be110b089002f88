"""The prompt sets are what the bench says of them: enough prompts, all different, as long as the model can take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from bench import speculation_sets
from bench.speculation import AT_BATCH_ONE
from bench.speculation_engine import MAX_LEN
from bench.speculation_sets import ORDER, PromptSet, encode, read_sets
from engine.checkpoint import read_checkpoint
from engine.vocab import load_vocab

BATCH = 16  # the largest that the bench sends at once


@pytest.fixture(scope="module")
def sets() -> list[PromptSet]:
    return read_sets()


def test_every_set_has_a_whole_batch_of_prompts_and_none_comes_twice(sets: list[PromptSet]) -> None:
    assert [one.key for one in sets] == list(ORDER)
    assert sorted(path.stem for path in speculation_sets.FOLDER.glob("*.toml")) == sorted(ORDER)
    texts = [prompt.text for one in sets for prompt in one.prompts]
    assert len(texts) == len(set(texts))
    for one in sets:
        assert len(one.prompts) >= BATCH
        assert len({prompt.name for prompt in one.prompts}) == len(one.prompts)
        assert 64 <= one.max_tokens <= 256
        assert {prompt.name[:-2] for prompt in one.prompts[:AT_BATCH_ONE]} == {
            prompt.name[:-2] for prompt in one.prompts
        }
    assert [one.key for one in sets if not one.copies] == ["open_chat"]


def test_prompts_and_answers_fit_the_default_model(sets: list[PromptSet], default_model_path: Path) -> None:
    vocab, context = load_vocab(default_model_path), read_checkpoint(default_model_path).config.max_position_embeddings
    assert context >= MAX_LEN
    for one in sets:
        for each in encode(one.prompts, vocab):
            assert len(each.token_ids) + one.max_tokens <= MAX_LEN, each.prompt.name
            assert len(each.token_ids) <= 600, each.prompt.name
            assert len(each.token_ids) >= (100 if one.copies else 10), each.prompt.name
            assert vocab.decode(list(each.token_ids)).endswith(each.prompt.begin or "\n")


def test_json_prompts_have_schemas_that_an_example_obeys(sets: list[PromptSet]) -> None:
    schemas = {prompt.name: prompt.schema for one in sets for prompt in one.prompts if prompt.schema}
    assert len(schemas) == 8
    assert {one.key for one in sets if any(prompt.schema for prompt in one.prompts)} == {"json_extraction"}
    for name, text in schemas.items():
        validator = jsonschema_rs.validator_for(json.loads(text))
        assert validator.is_valid(_example(json.loads(text))), name
        assert not validator.is_valid({"unknown": 1}), name


def _example(schema: dict[str, Any]) -> Any:
    """Some value of a schema such as ours."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema["type"]:
        case "object":
            return {name: _example(inner) for name, inner in schema["properties"].items()}
        case "array":
            return [_example(schema["items"])] * max(1, schema.get("minItems", 1))
        case "string":
            return "text"
        case _:
            return 1


def test_a_set_that_is_not_as_it_should_be_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation_sets, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match="no prompt set 'gone': known are"):
        read_sets(["gone"])
    for text, complaint in (
        ("title = 1", "KeyError"),
        ('title = "t"\ncopies = true\nmax_tokens = 9\n[[texts]]\nname = "n"\ntasks = [{ ask = "a" }]', "has 1 tasks"),
        ("title =", "TOMLDecodeError"),
    ):
        (tmp_path / "bad.toml").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=rf"bad\.toml: .*{complaint}"):
            read_sets(["bad"])
