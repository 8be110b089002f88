"""The verdict over HTTP: the header's word, the list of engines, and the figures that both rest on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.app.harness import Client
from tests.app.test_speculation_api import ask, client, engine_of, plain

__all__ = ["client", "plain"]  # fixtures


def header(client: Client) -> dict[str, Any]:
    with client.live("header") as socket:
        data: dict[str, Any] = json.loads(socket.recv(timeout=10))["data"]
        return data


def verdict(client: Client) -> dict[str, Any]:
    response = client.get(f"/api/engines/{engine_of(client)['id']}/verdict")
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def test_the_header_says_where_speculation_stands(client: Client, plain: Client) -> None:
    nothing = {"gain": None, "low": None, "high": None, "proposer": "suffix"}
    why = {"code": "no_steps", "steps": 0, "needed": 200}
    unknown = {"state": "not_enough_data", "reason": "no step was measured yet", "why": why}
    assert header(client)["speculation"] == {**unknown, **nothing}
    ask(client, prompt="MEASURED few")
    client.until(lambda: header(client)["speculation"]["reason"] == "180 of 200 steps measured")
    assert header(client)["engines"][0]["selftest"] == "never"
    ask(client, prompt="MEASURED wide")
    client.until(lambda: header(client)["speculation"]["reason"] == "the measured steps differ too much")
    assert header(client)["speculation"]["gain"] is None
    for word in ("even", "costs", "pays"):
        ask(client, prompt=f"MEASURED {word}")
        client.until(lambda word=word: header(client)["speculation"]["state"] == word)
    told = header(client)["speculation"]
    assert told["gain"] == pytest.approx(1.5)
    assert told["low"] < told["gain"] < told["high"]
    assert engine_of(client)["speculation"]["verdict"] == told
    url = f"/api/engines/{engine_of(client)['id']}/speculation"
    client.post(url, json={"enabled": False})
    words = "switched off by the operator"
    switched_off = {"state": "off", "reason": words, "why": {"code": "switched_off", "text": words}, **nothing}
    client.until(lambda: header(client)["speculation"] == switched_off)
    client.post(url, json={"enabled": True})
    assert header(plain)["speculation"]["state"] == "off"
    assert header(plain)["speculation"]["reason"] == "loaded without speculation"


def test_the_verdict_has_the_figures_it_rests_on(client: Client, plain: Client) -> None:
    ask(client)
    ask(client, prompt="MEASURED mixed")
    told = client.until(  # the counters come four times a second
        lambda: found if len((found := verdict(client))["buckets"]) == 2 and len(found["positions"]) == 3 else None
    )
    assert (told["state"], told["reason"], told["proposer"], told["rule"]) == ("pays", None, "suffix", "match")
    product = (1 + told["accepted_per_step"]) * told["plain_ms"] / (told["draft_ms"] + told["verify_ms"])
    assert told["speedup"] == pytest.approx(product)
    assert told["break_even"] == pytest.approx((told["draft_ms"] + told["verify_ms"]) / told["plain_ms"] - 1)
    assert told["plain_at"] < told["measured_at"] <= told["now"]
    assert [each["state"] for each in told["buckets"]] == ["pays", "costs"]
    assert [each["num_drafts"] for each in told["buckets"][0]["by_drafts"]] == [0, 2, 4]
    assert [each["code"] for each in told["advice"]][:2] == ["keep", "off_at_batch"]
    first, second, third = told["positions"]
    assert first["drafted"] == first["verified"] == first["accepted"] > 0
    assert (second["accepted"], third["verified"], third["accepted"]) == (first["accepted"], first["accepted"], 0)
    off = verdict(plain)
    assert (off["state"], off["reason"]["code"], off["speedup"]) == ("off", "not_loaded", None)
    assert [each["code"] for each in off["advice"]] == ["load_with"]
    assert client.get("/api/engines/nobody/verdict").status_code == 404
