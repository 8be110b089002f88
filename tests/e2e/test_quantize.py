"""A tiny model quantised by the real job, examined, loaded by a real engine and asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.settings import Settings
from tests.app.harness import MODEL, make_home, serving

TEXT = "The wind fills the harbour and empties it again, as it has since the first stone was laid there. "


@pytest.mark.timeout(300)
def test_what_is_made_is_served(tmp_path: Path) -> None:
    with serving(Settings(home=make_home(tmp_path), port=0)) as client:
        wish = {"format": "awq", "group_size": 32, "calibration_text": TEXT * 400}
        job = client.job(client.post(f"/api/models/{MODEL}/quantize", json=wish))
        assert job["state"] == "succeeded", job["error"]
        made, figures = job["result"]["model_id"], job["result"]["figures"]
        assert made == f"{MODEL}-awq-g32"
        assert 0 < figures["perplexity"] < 1e6
        report = client.get(f"/api/models/{made}/doctor").json()
        assert (report["problem"], report["checkpoint"]["storage"]["group_sizes"]) == ("", [32])
        assert [(kind["quantised"], kind["plain"]) for kind in report["checkpoint"]["kinds"]] == [
            (0, 1),
            (8, 0),
            (6, 0),
        ]
        assert client.load(made, max_model_len=64, max_num_seqs=2)["state"] == "succeeded"
        answer = client.post("/v1/completions", json={"prompt": "The wind", "max_tokens": 4, "temperature": 0})
        assert answer.json()["usage"]["completion_tokens"] == 4
