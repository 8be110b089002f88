"""Load options of speculation over HTTP: what reaches the engine, and what is refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.harness import MODEL, make_home, make_settings, serving


def test_load_options_of_speculation_reach_the_engine(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = make_home(tmp_path_factory.mktemp("options"))
    drafter = home / "drafters" / "mine"
    drafter.mkdir(parents=True)
    (drafter / "config.json").write_text('{"pizarra": {"kind": "medusa", "target": {"model_id": "other"}}}')
    (drafter / "model.safetensors").write_bytes(b"weights")
    with serving(make_settings(home)) as client:
        wishes: dict[str, Any] = {"speculation": "suffix", "num_speculative_tokens": 5, "speculation_rule": "rejection"}
        assert client.load(**wishes, drafter="mine")["state"] == "succeeded"
        line = client.logged("options ")
        for name, value in (*wishes.items(), ("drafter", str(drafter))):
            assert f"{name!r}: {value!r}" in line
        assert client.get("/api/engines").json()["engines"][0]["options"]["drafter"] == str(drafter)
        client.unload()
        for options, says in (
            ({"speculation": "oracle"}, "known are auto, off"),
            ({"num_speculative_tokens": 16}, "num_speculative_tokens=16: must lie between 1 and 15"),
            ({"speculation_rule": "typical"}, "known are match, rejection"),
            ({"drafter": "nobody"}, "known are mine"),
            ({"drafter": 5}, "drafter"),
        ):
            for call in ("load", "estimate"):
                response = client.post(f"/api/models/{MODEL}/{call}", json={"options": options})
                assert response.status_code == 400, response.text
                assert says in response.json()["detail"]
                assert response.json()["param"].startswith("options")
