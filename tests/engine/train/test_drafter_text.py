"""The conversations that a model writes with itself: turns, stories, shards."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.core.sampling_params import SamplingParams
from engine.train import drafter_text
from engine.train.drafter_stories import ANSWER, BY_MODEL, DRAWS, GIVEN, Ask, Conversation, Storyteller, Written
from engine.train.drafter_tasks import CODE_TASKS, TASKS, fill
from engine.train.drafter_text import TextWish, answer_tokens_of, read_shard, write_text
from engine.train.drafter_turns import turns_of
from engine.train.refusal import Refusal
from engine.vocab import Vocab, load_vocab
from tests.engine.tiny_checkpoint import CHAT_TEMPLATE, tiny_llama_checkpoint, tiny_tokenizer


def test_turns_are_the_pieces_of_the_template() -> None:
    vocab = Vocab(tiny_tokenizer(), chat_template=CHAT_TEMPLATE)
    turns = turns_of(vocab, "Be brief.")
    assert turns.has_template
    opening = vocab.decode(turns.opening, skip_special_tokens=False)
    assert opening == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
    assert vocab.decode(turns.to_answer, skip_special_tokens=False) == "<|im_end|>\n<|im_start|>assistant\n"
    assert vocab.decode(turns.to_user, skip_special_tokens=False) == "<|im_end|>\n<|im_start|>user\n"


def test_a_template_that_takes_no_system_prompt_goes_without() -> None:
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHAT_TEMPLATE
    turns = turns_of(Vocab(tiny_tokenizer(), chat_template=refusing), "Be brief.")
    assert turns.has_template
    assert turns == turns_of(Vocab(tiny_tokenizer(), chat_template=CHAT_TEMPLATE))


def test_no_template_leaves_plain_text() -> None:
    turns = turns_of(Vocab(tiny_tokenizer()))
    assert not turns.has_template
    assert turns.to_answer == turns.to_user != ()


def test_tasks_take_any_text() -> None:
    for task in (*TASKS, *CODE_TASKS):
        assert fill(task, " {x} and {} ").count("{x} and {}") == 1


def told(number: int, texts: tuple[str, ...] = ()) -> list[Conversation]:
    """A story whose model always writes the same."""
    vocab = Vocab(tiny_tokenizer(), chat_template=CHAT_TEMPLATE)
    script = Storyteller(vocab, texts, 3, 700, 60).script(number)
    words = Written(tuple(vocab.encode("The answer is in the hat. " * 3)), ended=True)
    ask = next(script)
    while True:
        assert isinstance(ask, Ask)
        assert len(ask.prompt) + ask.sampling.max_tokens <= 700
        try:
            ask = script.send(words)
        except StopIteration as end:
            return list(end.value)


def test_stories_have_questions_answers_of_every_kind_and_tasks_over_them() -> None:
    talks = [talk for number in range(60) for talk in told(number)]
    kinds = {kind for talk in talks for kind in talk.kinds}
    assert kinds == {GIVEN, BY_MODEL, *range(ANSWER, ANSWER + len(DRAWS))}
    vocab = Vocab(tiny_tokenizer(), chat_template=CHAT_TEMPLATE)
    texts = [vocab.decode(talk.token_ids, skip_special_tokens=False) for talk in talks]
    assert any("Summari" in text and text.count("The answer is") > 3 for text in texts)
    assert all(len(talk.token_ids) == len(talk.kinds) <= 700 for talk in talks)
    for talk in talks:  # the end that the model wrote is part of its answer, and comes once
        for at, kind in enumerate(talk.kinds[:-1]):
            if kind >= ANSWER and talk.kinds[at + 1] < ANSWER:
                assert talk.token_ids[at : at + 2] == vocab.encode("<|im_end|>\n")
    assert told(5) == told(5)
    assert told(5) != told(6)


def test_the_operators_texts_are_asked() -> None:
    text = "Of wind and tide and the long way home to the sea."
    vocab = Vocab(tiny_tokenizer())
    found = [vocab.decode(talk.token_ids) for number in range(20) for talk in told(number, (text,))]
    assert sum(text in one for one in found) > 5
    assert any(text in one and "text" in one.replace(text, "") for one in found)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_checkpoint(tmp_path_factory.mktemp("model"), num_hidden_layers=3)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafter_text, "STORIES_PER_SHARD", 8)
    monkeypatch.setattr(drafter_text, "_REQUESTS_AT_ONCE", 8)


def wish(model: Path, folder: Path, tokens: int, fingerprint: str = "f1") -> TextWish:
    return TextWish(model, fingerprint, folder, tokens, seed=1, longest=256, answer_tokens=40)


def test_text_that_was_stopped_is_gone_on_with_to_the_same_shards(model: Path, tmp_path: Path) -> None:
    def stop_late(done: int, total: int) -> None:
        if len(list((tmp_path / "b").glob("text-*.safetensors"))) == 1:
            raise Stop

    whole = write_text(wish(model, tmp_path / "a", 900), lambda done, total: None)
    assert len(whole) >= 2
    assert sum(answer_tokens_of(path) for path in whole) >= 900
    with pytest.raises(Stop):
        write_text(wish(model, tmp_path / "b", 900), stop_late)
    again = write_text(wish(model, tmp_path / "b", 900), lambda done, total: None)
    assert [path.name for path in again] == [path.name for path in whole]
    for one, other in zip(whole, again, strict=True):
        first, second = read_shard(one), read_shard(other)
        assert torch.equal(first.token_ids, second.token_ids)
        assert torch.equal(first.kinds, second.kinds)
    assert write_text(wish(model, tmp_path / "b", 900), lambda done, total: pytest.fail("nothing to do")) == again
    shard = read_shard(whole[0])
    assert int(shard.lengths.sum()) == len(shard.token_ids) == len(shard.kinds)
    assert shard.num_answer_tokens == answer_tokens_of(whole[0])
    assert set(shard.stories[shard.held_out].tolist()) <= {0}
    part = shard.part([2, 0])
    vocab = load_vocab(model)
    length = int(shard.lengths[0])
    assert part.token_ids[int(shard.lengths[2]) :].tolist() == shard.token_ids[:length].tolist()
    assert "<|im_start|>assistant" in vocab.decode(part.token_ids.tolist(), skip_special_tokens=False)


class Stop(Exception):
    pass


def test_answers_of_an_unfinished_shard_are_not_written_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stretches that are each shorter than a shard come to an end, and to the same shard."""
    asked: list[int] = []
    send = drafter_text._Writer._send

    def watched(writer: drafter_text._Writer, one: drafter_text._Running) -> None:
        asked.append(one.story)
        send(writer, one)

    monkeypatch.setattr(drafter_text._Writer, "_send", watched)
    whole = write_text(wish(model, tmp_path / "a", 200), lambda done, total: None)
    assert len(whole) == 1
    needed = len(asked)
    asked.clear()

    def stop_after_some(done: int, total: int) -> None:
        if len(asked) - begun >= 12:
            raise Stop

    stretches = 0
    while not drafter_text.shards_in(tmp_path / "b"):
        begun, stretches = len(asked), stretches + 1
        assert stretches < 40, "no stretch gets any further"
        with contextlib.suppress(Stop):
            write_text(wish(model, tmp_path / "b", 200), stop_after_some)
    assert stretches > 2
    assert len(asked) <= needed + 8 * stretches  # what was being written at each end, no more
    [path] = drafter_text.shards_in(tmp_path / "b")
    expected = load_file(whole[0])
    for name, tensor in load_file(path).items():
        assert torch.equal(tensor, expected[name]), name
    (tmp_path / "b" / drafter_text.UNFINISHED).write_text("{")
    with pytest.raises(Refusal, match=r"unfinished.json: cannot be read .* remove the file"):
        write_text(wish(model, tmp_path / "b", 200), lambda done, total: None)


def test_text_of_other_weights_is_refused(model: Path, tmp_path: Path) -> None:
    whole = write_text(wish(model, tmp_path / "a", 200), lambda done, total: None)
    with pytest.raises(Refusal, match=r"text-00000.safetensors: was written with model 'f1'; ask for the same"):
        write_text(wish(model, tmp_path / "a", 200, "f2"), lambda done, total: None)
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a" / drafter_text.UNFINISHED, tmp_path / "b")
    with pytest.raises(Refusal, match=r"unfinished.json: was written with model 'f1'"):
        write_text(wish(model, tmp_path / "b", 200, "f2"), lambda done, total: None)
    recipe = {"seed": 1, "texts": "", "longest": 256, "answer_tokens": 40}  # as versions before this rule wrote it
    save_file(load_file(whole[0]), whole[0], {"answer_tokens": "200", "recipe": json.dumps(recipe)})
    with pytest.raises(Refusal, match="does not say which weights wrote it"):
        write_text(wish(model, tmp_path / "a", 200), lambda done, total: None)


def test_a_template_that_leaves_no_room_is_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="conversations of 16 tokens are too short"):
        write_text(TextWish(model, "f", tmp_path / "c", 900, longest=16, answer_tokens=8), lambda done, total: None)


def test_endless_repetition_is_cut() -> None:
    writer = drafter_text._Writer.__new__(drafter_text._Writer)
    ask = Ask((1,), SamplingParams(), answer=True)
    one = drafter_text._Running(0, iter(()), ask)  # type: ignore[arg-type]
    for token_id in range(100):
        writer._note(one, token_id)
    assert one.repeated == 0
    for token_id in [7, 8, 9] * 40:
        writer._note(one, token_id)
    assert one.repeated == 120 - drafter_text._GRAM - 2
