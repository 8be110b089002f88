"""Where calibration text comes from, and that what is measured on is other text."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.train.calibration import rows_by_model, rows_of_file
from engine.train.prompts import TOPICS, Prompter
from engine.vocab import Vocab, load_vocab
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint, tiny_tokenizer


def test_a_files_last_part_is_held_out(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(chr(97 + index % 26) + str(index) for index in range(400)))
    vocab = Vocab(tiny_tokenizer())
    token_ids = vocab.encode(text.read_text())
    rows = rows_of_file(text, vocab, 10, 32)
    assert rows.calibration.flatten().tolist() == token_ids[:320]
    assert len(rows.held_out) == 2
    end = len(token_ids) // 32 * 32
    assert rows.held_out.flatten().tolist() == token_ids[end - 64 : end]


def test_a_short_file_is_shared(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("0123456789" * 7)
    rows = rows_of_file(text, Vocab(tiny_tokenizer()), 64, 32)
    assert (len(rows.calibration), len(rows.held_out)) == (1, 1)


def test_the_model_writes_the_same_for_the_same_seed_and_keeps_topics_apart(tmp_path: Path) -> None:
    path = tiny_llama_checkpoint(tmp_path)
    vocab = load_vocab(path)
    reports: list[tuple[int, int]] = []
    first, again, other = (
        rows_by_model(path, vocab, 5, 64, seed, 1, lambda done, total: reports.append((done, total)))
        for seed in (3, 3, 4)
    )
    assert first.calibration.shape == (5, 64)
    assert first.held_out.shape == (1, 64)
    assert torch.equal(first.calibration, again.calibration)
    assert torch.equal(first.held_out, again.held_out)
    assert not torch.equal(first.calibration, other.calibration)
    assert reports[-1][0] <= reports[-1][1] == 6 * 64
    held_out = vocab.decode(first.held_out[0].tolist())
    assert TOPICS[4] in held_out
    assert TOPICS[4] not in vocab.decode(first.calibration.flatten().tolist())


def test_a_template_that_cannot_be_rendered_leaves_plain_text() -> None:
    broken = Vocab(tiny_tokenizer(), chat_template="{% for %}")
    assert not Prompter(broken).has_template
    assert broken.decode(Prompter(broken).prompt(0)) == TOPICS[0]
    refusing = Vocab(tiny_tokenizer(), chat_template="{{ raise_exception('no') }}")
    assert not Prompter(refusing).has_template
    plain = Vocab(tiny_tokenizer(), chat_template="<|im_start|>{{ messages[0].content }}<|im_end|>")
    assert plain.decode(Prompter(plain).prompt(1)) == TOPICS[1]
