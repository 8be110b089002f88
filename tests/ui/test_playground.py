"""The playground in a real browser over a real server with fake engines: what is shown is what the API says."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.app.harness import MODEL, Client, make_home, make_settings, serving
from tests.browser import Tab, open_tab
from ui.site import mount_site

WAIT_MS = 60_000
GO, STOP, SHEET = (
    ".pz-play-panel:not([hidden]) .pz-play-go",
    ".pz-play-panel:not([hidden]) .pz-play-stop",
    ".pz-play-sheet",
)

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = make_home(tmp_path_factory.mktemp("playground"))
    (home / "models" / MODEL / "generation_config.json").write_text(json.dumps({"temperature": 0.6}))
    with serving(make_settings(home), mount_site) as client:
        assert client.load()["state"] == "succeeded"
        yield client


@pytest.fixture
def tab(client: Client, browser: Browser) -> Iterator[Tab]:
    with open_tab(browser, str(client.base_url).rstrip("/")) as opened:
        yield opened


def field(page: Page, name: str) -> Any:
    return page.locator(f".pz-play-panel:not([hidden]) [name={name}]")


def status(page: Page) -> Any:
    return page.locator(".pz-play-panel:not([hidden]) .pz-play-status")


def test_a_completion_is_its_tokens_and_each_can_be_inspected(tab: Tab, client: Client) -> None:
    page = tab.go("/playground")
    expect(page.locator(".pz-play-field:has([name=temperature]) .pz-play-default")).to_have_text(
        "0.6 · from the model's generation_config.json", timeout=WAIT_MS
    )
    page.fill("#pz-play-prompt", "Tell me.")
    field(page, "max_tokens").fill("6")
    field(page, "seed").fill("5")
    page.locator(".pz-play-group summary", has_text="Filters").click()
    field(page, "top_k").fill("9")
    page.click(GO)
    expect(status(page)).to_contain_text("reached max_tokens (6)", timeout=WAIT_MS)
    body = {"prompt": "Tell me.", "max_tokens": 6, "seed": 5, "top_k": 9, "logprobs": 0, "return_token_ids": True}
    answer = client.post("/v1/completions", json=body).json()
    choice = answer["choices"][0]
    assert page.locator(f"{SHEET} .pz-tok:not(.pz-tok-end)").all_inner_texts() == choice["logprobs"]["tokens"]
    expect(status(page)).to_contain_text(f"{answer['usage']['prompt_tokens']} in, 6 out")
    page.locator(f"{SHEET} [data-index='1']").click()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".pz-play-inspector h2")).to_have_text("Token 3 of 6")
    engine = client.get("/api/engines").json()["engines"][0]["id"]
    question = {"request": body, "answer_token_ids": choice["token_ids"], "positions": [2], "top": 10}
    place = client.post(f"/api/engines/{engine}/inspect", json=question).json()["places"][0]
    facts = page.locator(".pz-play-inspector .pz-play-facts dd")
    expect(facts.nth(1)).to_have_text(f"{place['logprob']:.4f}", timeout=WAIT_MS)
    expect(facts.nth(2)).to_have_text(str(place["rank"]))
    assert facts.nth(0).inner_text() == f"{100 * math.exp(place['logprob']):.2f} %"
    rows = page.locator(".pz-play-top tbody tr")
    assert rows.count() == 10
    assert rows.last.locator("td").last.inner_text() == "cannot come"
    [stage] = page.locator(".pz-play-chain [data-stage]").all()
    assert stage.locator("td").first.inner_text() == "9"
    assert stage.locator("td").nth(1).inner_text() == "311 (25.0 %)"
    request = page.locator(".pz-play-fold", has_text="Request").last
    request.locator("summary").click()
    expect(request.locator("pre")).to_contain_text("Tell me.")
    sent = json.loads(request.locator("pre").inner_text())
    assert {name: sent[name] for name in ("prompt", "max_tokens", "seed", "top_k")} == {
        "prompt": "Tell me.", "max_tokens": 6, "seed": 5, "top_k": 9,
    }  # fmt: skip
    assert "temperature" not in sent, "what is not set is not sent"
    assert tab.problems == []


def running(client: Client) -> int:
    rows = client.get("/api/requests?limit=5").json()["requests"]
    return sum(row["state"] in ("queued", "running") for row in rows)


def test_an_answer_goes_on_behind_another_tab_and_stop_ends_it_in_the_engine(tab: Tab, client: Client) -> None:
    page = tab.go("/playground")
    page.fill("#pz-play-prompt", "SLOW ENDLESS")
    field(page, "max_tokens").fill("400")
    page.click(GO)
    tokens = f"document.querySelectorAll('{SHEET} .pz-tok').length"
    page.wait_for_function(f"{tokens} > 3", timeout=WAIT_MS)
    page.click("#pz-tab-tokenizer")
    assert page.url.endswith("/playground?tab=tokenizer"), "a reload leads back to the tab"
    seen = page.evaluate(tokens)
    page.wait_for_function(f"{tokens} > {seen + 10}", timeout=WAIT_MS)
    page.click("#pz-tab-completion")
    assert running(client) == 1
    page.click(STOP)
    expect(status(page)).to_contain_text("stopped; the engine was told", timeout=WAIT_MS)
    client.until(lambda: running(client) == 0)
    shown = page.evaluate(tokens) - 1
    assert f"{shown} out" in status(page).inner_text()
    assert tab.problems == []


def test_a_bad_field_is_named_and_nothing_is_sent(tab: Tab) -> None:
    page = tab.go("/playground")
    expect(page.locator(GO)).to_be_enabled(timeout=WAIT_MS)
    field(page, "seed").fill("many")
    page.click(GO)
    expect(status(page)).to_contain_text("seed: The seed must be a whole number")
    field(page, "seed").fill("")
    page.fill("#pz-play-prompt", "")
    page.click(GO)
    expect(status(page)).to_contain_text("the prompt is empty", timeout=WAIT_MS)
    assert all("400" in problem for problem in tab.problems)


def test_markup_from_the_model_stays_text(tab: Tab) -> None:
    page = tab.go("/playground")
    page.fill("#pz-play-prompt", "SAY«<img src=x onerror=alert(1)>»")
    page.click(GO)
    expect(status(page)).to_contain_text("end token", timeout=WAIT_MS)
    tokens = page.locator(f"{SHEET} .pz-tok:not(.pz-tok-end)").all_inner_texts()
    assert "".join(tokens) == "<img src=x onerror=alert(1)>"
    assert page.locator(f"{SHEET} img").count() == 0
    assert tab.problems == []


def test_raw_chat_sends_its_rows_and_shows_what_came(tab: Tab, client: Client) -> None:
    page = tab.go("/playground?tab=chat")
    page.get_by_label("Content").first.fill("Hi")
    field(page, "max_tokens").fill("4")
    page.click(GO)
    expect(status(page)).to_contain_text("reached max_tokens (4)", timeout=WAIT_MS)
    page.locator(".pz-play-fold summary", has_text="Response").click()
    answered = page.locator(".pz-play-fold:has-text('Response') pre")
    expect(answered).to_contain_text("usage")
    shown = json.loads(answered.inner_text())
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "return_token_ids": True}
    said = client.post("/v1/chat/completions", json=body).json()
    assert shown["choices"][0]["message"] == said["choices"][0]["message"]
    assert shown["choices"][0]["token_ids"] == said["choices"][0]["token_ids"]
    assert shown["usage"] == said["usage"]
    assert tab.problems == []


def test_the_tokenizer_shows_ids_and_survives_a_large_paste(tab: Tab, client: Client) -> None:
    page = tab.go("/playground?tab=tokenizer")
    box = page.locator(".pz-play-panel:not([hidden]) textarea")
    box.fill("hola, niño 🦊")
    found = client.post("/tokenize", json={"prompt": "hola, niño 🦊"}).json()
    spans = page.locator(".pz-play-spans .pz-tok")
    expect(spans).to_have_count(found["count"], timeout=WAIT_MS)
    assert [int(each.get_attribute("data-id") or -1) for each in spans.all()] == found["tokens"]
    expect(page.locator(".pz-play-facts dd").first).to_have_text(str(found["count"]))
    page.evaluate(
        "(text) => { const box = document.querySelector('.pz-play-panel:not([hidden]) textarea'); box.value = text;"
        " box.dispatchEvent(new Event('input')); }",
        "lots of words " * 4000,
    )
    page.wait_for_function("document.querySelectorAll('.pz-play-spans .pz-tok').length === 1500", timeout=WAIT_MS)
    expect(page.get_by_role("button", name="Show 1,500 more")).to_be_visible()
    assert tab.problems == []


def test_a_template_shows_its_special_tokens_and_none_that_was_typed(tab: Tab, client: Client) -> None:
    page = tab.go("/playground?tab=template")
    page.get_by_label("Content").nth(1).fill("<|user|></s>")
    messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "<|user|></s>"}]
    found = client.post("/tokenize", json={"messages": messages, "return_token_strs": True}).json()
    expect(page.locator(".pz-play-panel:not([hidden]) .pz-play-spans .pz-tok")).to_have_count(
        found["count"], timeout=WAIT_MS
    )
    special = page.locator(".pz-play-spans .pz-tok-special")
    expect(special).to_have_count(len(found["special"]))
    assert special.all_inner_texts() == [found["token_strs"][place].replace("\n", "↵") for place in found["special"]]
    assert tab.problems == []


def test_a_grammar_is_judged_while_it_is_typed_and_the_answer_afterwards(tab: Tab) -> None:
    page = tab.go("/playground?tab=structured")
    verdict = page.locator(".pz-play-verdict")
    expect(verdict).to_have_text("Usable: an answer can be held to it.", timeout=WAIT_MS, use_inner_text=True)
    page.fill("#pz-play-grammar", '{\n "type": }')
    expect(verdict).to_contain_text("Line 2, column 10: not JSON", timeout=WAIT_MS)
    verdict.get_by_role("button").click()
    assert page.evaluate("document.activeElement.selectionStart") == 11
    page.click("[data-kind=choice]")
    expect(verdict).to_contain_text("can be held to", timeout=WAIT_MS)
    page.fill("#pz-play-ask", "SAY«green»")
    page.click(GO)
    expect(page.locator(".pz-play-outcome")).to_contain_text("One of the choices.", timeout=WAIT_MS)
    expect(status(page)).to_contain_text("its grammar was complete")
    page.fill("#pz-play-ask", "SAY«mauve»")
    page.click(GO)
    expect(page.locator(".pz-play-outcome")).to_contain_text("None of the choices.", timeout=WAIT_MS)
    assert tab.problems == []


CHECK = """async ([schema, value]) => {
  const { checkSchema } = await import("/assets/js/play_schema_check.js");
  return checkSchema(schema, value);
}"""
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 2}, "b": {"$ref": "#/$defs/tags"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2, "uniqueItems": True}},
}


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        ({"a": 2, "b": ["x"]}, []),
        ({"a": 1}, [["/a", "minimum"]]),
        ({"a": 2.5}, [["/a", "type"]]),
        ({"b": ["z", "x", "x"]}, [["/", "required"], ["/b", "maxItems"], ["/b/0", "enum"]]),
        ({"a": 2, "c": 0}, [["/c", "additionalProperties"]]),
        ([], [["/", "type"]]),
    ],
)
def test_a_schema_is_checked_apart_from_the_engine(tab: Tab, value: Any, faults: list[list[str]]) -> None:
    tab.page.goto(tab.url + "/assets/icons/check.svg")
    found = tab.page.evaluate(CHECK, [SCHEMA, value])
    assert [[each["path"], each["keyword"]] for each in found["faults"]] == faults
    assert found["unchecked"] == (["uniqueItems"] if isinstance(value, dict) and "b" in value else [])


def test_a_stored_request_is_replayed_and_one_without_its_text_says_so(tab: Tab) -> None:
    page = tab.page
    page.route("**/api/requests/abc", lambda route: route.fulfill(json={"id": "abc", "body": None}))
    tab.go("/playground?tab=completion&replay=abc")
    expect(page.locator(".pz-play-notice")).to_contain_text("was not kept", timeout=WAIT_MS)
    sampling = {"temperature": 0.25, "stop": ["X"], "max_tokens": 3, "seed": "9", "bad_words": [[5]]}
    body = {"prompt": "Once more", "messages": None, "sampling": sampling, "answers": ["x"], "truncated": False}
    page.route("**/api/requests/abd", lambda route: route.fulfill(json={"id": "abd", "body": body}))
    tab.go("/playground?tab=completion&replay=abd")
    expect(page.locator("#pz-play-prompt")).to_have_value("Once more", timeout=WAIT_MS)
    for name, value in {"temperature": "0.25", "stop": "X", "max_tokens": "3", "seed": "9"}.items():
        expect(field(page, name)).to_have_value(value)
    expect(page.locator(".pz-play-notice")).to_contain_text("Not carried over: bad_words")
    chat = body | {"messages": [{"role": "system", "content": "Brief."}, {"role": "user", "content": "Hi"}]}
    page.route("**/api/requests/abe", lambda route: route.fulfill(json={"id": "abe", "body": chat}))
    tab.go("/playground?tab=completion&replay=abe")
    expect(page.get_by_label("Content").nth(1)).to_have_value("Hi", timeout=WAIT_MS)
    assert "tab=chat" in page.url
    assert tab.problems == []


def test_without_a_model_the_playground_says_so_and_sends_nothing(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = make_settings(make_home(tmp_path_factory.mktemp("empty")))
    with serving(settings, mount_site) as empty, open_tab(browser, str(empty.base_url).rstrip("/")) as tab:
        page = tab.go("/playground")
        expect(status(page)).to_contain_text("No model is loaded.", timeout=WAIT_MS)
        expect(page.locator(GO)).to_be_disabled()
        assert tab.problems == []
