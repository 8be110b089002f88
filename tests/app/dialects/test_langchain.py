"""langchain-tests' standard suite for chat models, through langchain-openai, against a server with a real engine.

Everything between the client and the weights is the product's own. The weights are random, so the tests that assert
what a capable model would say run under the scripts of `scripted_answers`, where each is listed with its reason. What
Pizarra does not take (images, audio, files) the suite leaves out by its own properties.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from pydantic import SecretStr

from app.settings import Settings
from tests.app.dialects.scripted_answers import SCRIPTS
from tests.app.harness import MODEL, Client, serving
from tests.engine.tiny_checkpoint import tiny_llama_checkpoint

ENGINE = Path(__file__).with_name("scripted_engine.py")
CONTEXT = 8192  # a token is little more than a byte here, and tools are long
MAX_TOKENS = 200
KEY = "the-key-of-the-suite"
TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}"
CALLS = '{% for c in m.tool_calls or [] %}<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
CALLS += "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}"
TEMPLATE = (
    "{% if tools %}<|im_start|>system\nCall with <tool_call></tool_call>: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    f"{{% for m in messages %}}{TURN}{CALLS}<|im_end|>\n{{% endfor %}}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("langchain")


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[Client]:
    folder = tiny_llama_checkpoint(home / "models" / MODEL, max_position_embeddings=CONTEXT)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": TEMPLATE}), encoding="utf-8")
    settings = Settings(home=home, port=0, api_key=SecretStr(KEY), engine_command=f"{sys.executable} {ENGINE}")
    with serving(settings) as client:
        client.headers["authorization"] = f"Bearer {KEY}"
        job = client.load(dtype="float32", max_num_seqs=4)
        assert job["state"] == "succeeded", job
        yield client


@pytest.mark.asyncio(loop_scope="class")  # langchain-openai keeps one connection pool for all
@pytest.mark.filterwarnings("ignore:The test .* is marked with '@pytest.mark.asyncio' but:pytest.PytestWarning")
class TestIntegration(ChatModelIntegrationTests):
    """The standard tests that ask the server."""

    @pytest.fixture(autouse=True)
    def _server(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = f"{client.base_url}/v1"
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("LANGSMITH_TRACING", "false")  # what a test asks stays on this machine

    @pytest.fixture(autouse=True)
    def _scripts(self, request: pytest.FixtureRequest, home: Path, client: Client) -> Iterator[None]:
        """What is listed as scripted is, and nothing else."""
        [log] = (home / "logs").glob("engine-*.log")
        before = log.stat().st_size
        yield
        said = set(re.findall(r"^scripted: (.*)$", log.read_bytes()[before:].decode(errors="replace"), re.MULTILINE))
        assert said == {script.when for script in SCRIPTS if request.function.__name__ in script.tests}

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        params = {"base_url": self.url, "api_key": KEY, "model": MODEL, "stream_usage": True}
        return {**params, "temperature": 0, "max_tokens": MAX_TOKENS}  # random weights would fill the context

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return MODEL


class TestUnit(ChatModelUnitTests):
    """The standard tests that need no server: they hold langchain-openai to what the others rely on."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"base_url": "http://127.0.0.1:9/v1", "api_key": KEY, "model": MODEL}

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return {"OPENAI_API_KEY": KEY}, {"model": MODEL}, {"openai_api_key": KEY}


def test_the_scripts_name_tests_of_the_suite() -> None:
    named = {name for script in SCRIPTS for name in script.tests}
    assert named <= set(dir(ChatModelIntegrationTests))
    assert all(script.reason for script in SCRIPTS)
