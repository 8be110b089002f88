"""Alerts, Stop all, settings, about and storage over HTTP, with fake engines."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.alert_metrics import METRICS
from app.home import DATABASE
from db.alert_rows import AlertRow
from db.store import Store
from tests.app.harness import MODEL, Client, make_home, make_settings, serving

ALWAYS = {"metric": "host_memory_percent", "comparison": "above", "threshold": 0.001}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("alerts")))) as client:
        yield client


def rules(client: Client) -> dict[str, Any]:
    return {each["id"]: each for each in client.get("/api/alert-rules").json()["rules"]}


def alerts(client: Client, **where: Any) -> list[dict[str, Any]]:
    found = client.get("/api/alerts?limit=1000").json()["alerts"]
    return [each for each in found if all(each[name] == value for name, value in where.items())]


def add(client: Client, **changes: Any) -> dict[str, Any]:
    response = client.post("/api/alert-rules", json=ALWAYS | changes)
    assert response.status_code == 201, response.text
    found: dict[str, Any] = response.json()
    return found


def delete(client: Client, rule_id: str) -> None:
    version = rules(client)[rule_id]["version"]
    assert client.delete(f"/api/alert-rules/{rule_id}?version={version}").status_code == 204


def test_the_list_names_every_metric_with_its_unit(client: Client) -> None:
    told = client.get("/api/alert-rules").json()["metrics"]
    assert {each["name"]: each["unit"] for each in told} == {name: metric.unit for name, metric in METRICS.items()}
    assert all(each["definition"] for each in told)


def test_a_rule_fires_is_told_acknowledged_and_ends_when_it_is_changed(client: Client) -> None:
    with client.live("alerts", "header", "events") as live:
        rule = add(client, severity="error")
        heard: dict[str, dict[str, Any]] = {}
        while not {"alerts", "events"} <= heard.keys() or not heard["header"]["alerts"]["firing"]:
            message = json.loads(live.recv(20))
            heard[message["topic"]] = message["data"]
    alert = heard["alerts"]
    assert (alert["rule_id"], alert["state"], alert["subject"]) == (rule["id"], "firing", "host")
    assert heard["events"]["kind"] == "alert"
    assert heard["events"]["severity"] == "error"
    assert heard["header"]["alerts"]["unacknowledged"] >= 1
    (standing,) = rules(client)[rule["id"]]["now"]
    assert standing["state"] == "firing"

    seen = client.post(f"/api/alerts/{alert['id']}/acknowledge").json()["alerts"]
    assert seen[0]["acknowledged_at"] is not None
    assert client.get("/api/alerts").json()["unacknowledged"] == 0
    assert client.post("/api/alerts/acknowledge").json()["alerts"] == []

    path = f"/api/alert-rules/{rule['id']}"
    assert client.patch(path, json={"version": 1, "threshold": 99.9}).json()["version"] == 2
    ended = client.until(lambda: alerts(client, rule_id=rule["id"], state="resolved"))
    assert [each["resolved_by"] for each in ended] == ["rule"]
    delete(client, rule["id"])
    assert alerts(client, rule_id=rule["id"]), "the history stays"


def test_a_stale_change_is_refused(client: Client) -> None:
    rule = add(client, threshold=100.0)
    path = f"/api/alert-rules/{rule['id']}"
    assert client.patch(path, json={"version": 1, "enabled": False}).status_code == 200
    stale = client.patch(path, json={"version": 1, "threshold": 5.0})
    assert stale.status_code == 409
    assert "version 2" in stale.json()["detail"]
    assert client.delete(f"{path}?version=1").status_code == 409
    assert rules(client)[rule["id"]]["threshold"] == 100.0
    delete(client, rule["id"])
    assert client.patch(path, json={"version": 2, "enabled": True}).status_code == 404


@pytest.mark.parametrize(
    ("changes", "status", "told"),
    [
        ({"metric": "nope"}, 400, "requests_waiting, "),
        ({"webhook": "file:///etc/passwd"}, 400, "http"),
        ({"comparison": "near"}, 400, "above"),
        ({"for_s": -1.0}, 400, "for_s"),
        ({"threshold": 1e300}, 400, "threshold"),
        ({"colour": "red"}, 422, "colour"),
    ],
)
def test_a_wrong_rule_is_refused_with_the_reason(
    client: Client, changes: dict[str, Any], status: int, told: str
) -> None:
    response = client.post("/api/alert-rules", json=ALWAYS | changes)
    assert response.status_code == status
    assert told in response.json()["detail"]


def test_a_muted_rule_is_recorded_and_not_counted(client: Client) -> None:
    before = client.get("/api/alerts").json()
    rule = add(client, muted_until=4e9)
    (alert,) = client.until(lambda: alerts(client, rule_id=rule["id"]))
    assert alert["muted"]
    now = client.get("/api/alerts").json()
    assert (now["firing"], now["unacknowledged"]) == (before["firing"], before["unacknowledged"])
    delete(client, rule["id"])


def test_the_webhook_of_a_rule_can_be_tried(client: Client) -> None:
    rule = add(client, threshold=100.0)
    path = f"/api/alert-rules/{rule['id']}"
    assert client.post(f"{path}/test").status_code == 409
    client.patch(path, json={"version": 1, "webhook": "http://127.0.0.1:9/hook"})
    found = client.post(f"{path}/test").json()
    assert not found["delivered"]
    assert found["error"]
    delete(client, rule["id"])


def test_an_engine_that_is_killed_is_an_alert_until_it_is_loaded_again(client: Client) -> None:
    assert client.load()["state"] == "succeeded"
    engine = client.get("/api/engines").json()["engines"][0]
    os.kill(engine["pid"], signal.SIGKILL)
    (alert,) = client.until(lambda: alerts(client, metric="engine_down", state="firing"), 10)
    assert (alert["subject"], alert["severity"]) == (MODEL, "error")
    assert client.load()["state"] == "succeeded"
    client.until(lambda: alerts(client, metric="engine_down", state="resolved"), 20)
    assert client.unload()["state"] == "succeeded"


def test_stop_all_ends_every_request_and_is_kept_as_an_event(client: Client) -> None:
    assert client.load()["state"] == "succeeded"
    engine = client.get("/api/engines").json()["engines"][0]["id"]
    answers: list[dict[str, Any]] = []

    def ask() -> None:
        body = {"prompt": "SLOW ENDLESS", "max_tokens": 400}
        response = httpx.post(f"{client.base_url}/v1/completions", json=body, timeout=60, trust_env=False)
        answers.append(response.json())

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()

    def running() -> list[dict[str, Any]]:
        return [each for each in client.get("/api/requests").json()["requests"] if each["state"] == "running"]

    client.until(lambda: len(running()) == 3)
    assert client.post(f"/api/engines/{engine}/abort").json() == {"aborted": 3}
    for thread in threads:
        thread.join(10)
    assert len(answers) == 3
    assert not running()
    (event,) = [each for each in client.get("/api/events").json()["events"] if each["kind"] == "abort"]
    assert event["data"] == {"aborted": 3}
    assert client.post("/api/engines/nothing/abort").status_code == 404
    assert client.unload()["state"] == "succeeded"


def test_alerts_are_paged_by_their_place_and_survive_a_restart(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with closing(Store(home / DATABASE)) as store:
        for n in range(7):
            row = AlertRow(0, "old", "engine_down", "above", 0, "error", f"m{n}", "resolved", 1, 1, n, n, n + 1, "gone")
            store.alerts.add(row).result()
        going_on = store.alerts.rules()[1]
        assert going_on.id == "device_memory_percent"
        open_row = AlertRow(0, going_on.id, going_on.metric, "above", 98, "warning", "gpu 7", "firing", 99, 99, 9, 9)
        store.alerts.add(open_row).result()
    with serving(make_settings(home)) as client:
        client.until(lambda: alerts(client, subject="gpu 7", resolved_by="gone"))  # no such GPU here
        first = client.get("/api/alerts?limit=3").json()
        assert [each["subject"] for each in first["alerts"]] == ["gpu 7", "m6", "m5"]
        rest = client.get(f"/api/alerts?limit=100&before={first['next_before']}").json()
        assert [each["subject"] for each in rest["alerts"]] == ["m4", "m3", "m2", "m1", "m0"]
        assert rest["next_before"] is None
        assert rest["unacknowledged"] == 8
        assert client.get("/api/alerts?state=firing").json()["alerts"] == []


# ---- settings, about, storage ---------------------------------------------------------------------------------------


def test_settings_of_two_tabs_merge_by_key_and_never_overwrite_blindly(client: Client) -> None:
    def put(settings: dict[str, Any], expected: dict[str, Any]) -> httpx.Response:
        return client.put("/api/settings", json={"settings": settings, "expected": expected})

    assert put({"retention_raw_hours": 48}, {"retention_raw_hours": None}).status_code == 200
    assert put({"store_bodies": True}, {"store_bodies": None}).status_code == 200, "another key: no conflict"
    stale = put({"retention_raw_hours": 12, "store_bodies": False}, {"retention_raw_hours": None, "store_bodies": True})
    assert stale.status_code == 409
    assert "retention_raw_hours" in stale.json()["detail"]
    stored = client.get("/api/settings").json()["settings"]
    assert (stored["retention_raw_hours"], stored["store_bodies"]) == (48, True), "all or nothing"
    storage = client.get("/api/storage").json()
    assert storage["store_bodies"] is True
    assert {each["name"]: each["value"] for each in storage["retention"]}["retention_raw_hours"] == 48
    assert storage["database_bytes"] > 0
    assert storage["rows"]["settings"] == 2


@pytest.mark.parametrize(
    ("name", "value"), [("retention_raw_hours", 0), ("retention_raw_hours", True), ("store_bodies", "yes")]
)
def test_a_setting_that_its_reader_could_not_use_is_refused(client: Client, name: str, value: Any) -> None:
    response = client.put("/api/settings", json={"settings": {name: value}})
    assert response.status_code == 400
    assert response.json()["param"] == name


def test_about_names_this_installation_and_serves_its_texts(client: Client) -> None:
    about = client.get("/api/about").json()
    assert about["processor"]["cores"] == len(os.sched_getaffinity(0))
    assert {each["name"] for each in about["libraries"]} >= {"torch", "gradio"}
    assert "LICENSE" in about["documents"]
    text = client.get("/api/about/documents/LICENSE")
    assert "Apache License" in text.text
    assert text.headers["content-type"].startswith("text/plain")
    assert client.get("/api/about/documents/pyproject.toml").status_code == 404
    assert client.get("/api/about/documents/..%2Fpyproject.toml").status_code == 404
