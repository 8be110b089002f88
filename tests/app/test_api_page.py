"""The examples of the pages on the API, run as they stand, in order, on the real engine with the default model."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from app.settings import Settings
from tests.app.harness import serving

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("api.md", "dashboard-api.md")
ADDRESS = "http://127.0.0.1:7860"
MODEL = "default"


@pytest.mark.timeout(400)
def test_every_example_runs(tmp_path: Path, default_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    text = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) >= 10
    (tmp_path / "models" / MODEL).mkdir(parents=True)
    (tmp_path / "models" / MODEL / "model.gguf").symlink_to(default_model_path)
    with serving(Settings(home=tmp_path, port=0)) as client:
        assert client.load(MODEL, max_num_seqs=4, max_model_len=1024)["state"] == "succeeded"
        names: dict[str, object] = {}
        for example in examples:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(example.replace(ADDRESS, str(client.base_url)), names)
            assert printed.getvalue().strip(), f"prints nothing:\n{example}"
