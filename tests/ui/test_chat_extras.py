"""The chat page over fake engines: files, folders, presets, token counts, versions, long chats, other tabs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.app.harness import Client, make_home, make_settings, serving
from tests.browser import Tab, open_tab
from ui.site import mount_site

WAIT_MS = 60_000

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(make_settings(make_home(tmp_path_factory.mktemp("site"))), mount_site) as client:
        assert client.load()["state"] == "succeeded"
        yield client


@pytest.fixture
def tab(client: Client, browser: Browser) -> Iterator[Tab]:
    with open_tab(browser, str(client.base_url).rstrip("/")) as opened:
        yield opened
        assert opened.problems == []


def newest(client: Client) -> dict[str, Any]:
    listed = client.get("/api/conversations").json()["conversations"]
    found: dict[str, Any] = client.get(f"/api/conversations/{listed[0]['id']}").json()
    return found


def imported(client: Client, turns: list[dict[str, str]], **fields: str) -> str:
    made = client.post("/api/conversations/import", json={"text": json.dumps(turns), **fields})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


def ask(page: Page, text: str) -> None:
    expect(page.locator(".pz-send")).to_be_enabled(timeout=WAIT_MS)
    page.fill("#pz-message", text)
    page.keyboard.press("Enter")


def test_an_attached_text_is_counted_sent_and_shown(tab: Tab, client: Client, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("ananas <b>banana</b>\n")
    (tmp_path / "picture.bin").write_bytes(b"\x89PNG\xff\x00")
    page = tab.go("/chat")
    page.set_input_files(".pz-composer input[type=file]", [tmp_path / "notes.txt", tmp_path / "picture.bin"])
    expect(page.locator(".pz-toast-error")).to_contain_text("picture.bin: this is not a file of UTF-8 text")
    page.click(".pz-toast [aria-label=Close]")
    page.fill("#pz-message", "What is it?")
    asked = {"content": "What is it?", "attachments": [{"name": "notes.txt", "text": "ananas <b>banana</b>\n"}]}
    told = client.post("/api/conversations/count", json={**asked, "system_prompt": ""}).json()
    expect(page.locator(".pz-token-count")).to_have_text(
        f"{told['num_tokens']} tokens, room for {told['room']}", timeout=WAIT_MS
    )
    expect(page.locator(".pz-attachment-cost")).to_have_text(f"{told['attachment_tokens'][0]} tokens")
    page.keyboard.press("Enter")
    expect(page.locator(".pz-message-stats")).to_be_visible(timeout=WAIT_MS)
    expect(page.locator(".pz-attachment")).to_have_count(0)
    page.click(".pz-attached-file summary")
    assert page.text_content(".pz-attached-file pre") == "ananas <b>banana</b>\n"
    question, answer = newest(client)["messages"]
    assert question["attachments"] == asked["attachments"]
    assert answer["stats"]["num_prompt_tokens"] == told["num_tokens"]
    assert page.get_attribute(".pz-quiet-link", "href") == f"/requests?id={answer['request_id']}"


def test_chats_are_moved_to_folders_saved_and_opened_again(tab: Tab, client: Client) -> None:
    turns = [{"role": "user", "content": "Hi <i>there</i>"}, {"role": "assistant", "content": "Ho"}]
    chat = imported(client, turns)
    page = tab.go(f"/chat?c={chat}")
    item = page.locator(".pz-chat-item", has=page.locator("[aria-current]"))
    item.hover()
    item.locator("[aria-label='Move to a folder']").click()
    page.fill("dialog input", "<b>Work</b>")
    page.click("dialog .pz-primary")
    expect(page.locator(".pz-chat-folder summary")).to_contain_text("<b>Work</b>")
    page.click(".pz-chat-bar [aria-label='Save this chat']")
    with page.expect_download() as download:
        page.click(".pz-export-choice >> nth=1")
    text = Path(download.value.path()).read_text()
    page.set_input_files(".pz-chat-list input[type=file]", [
        {"name": "again.json", "mimeType": "application/json", "buffer": text.encode()}
    ])  # fmt: skip
    page.wait_for_function(f"new URLSearchParams(location.search).get('c') !== '{chat}'")
    expect(page.locator(".pz-message-user")).to_contain_text("Hi <i>there</i>")
    again = newest(client)
    assert (again["folder"], [each["content"] for each in again["messages"]]) == (
        "<b>Work</b>",
        ["Hi <i>there</i>", "Ho"],
    )
    page.set_input_files(".pz-chat-list input[type=file]", [
        {"name": "no.json", "mimeType": "application/json", "buffer": b"{}"}
    ])  # fmt: skip
    expect(page.locator(".pz-toast-error")).to_contain_text("neither an exported chat nor a list of messages")
    tab.problems[:] = [each for each in tab.problems if "400 (Bad Request)" not in each]


def test_a_preset_is_kept_taken_over_and_brought_up_to_date(tab: Tab, client: Client) -> None:
    page = tab.go("/chat")
    page.click("[aria-label='Chat settings']")
    page.fill("#pz-system", "Arr.")
    page.fill("#pz-temperature", "0.3")
    page.click("[aria-label='Save as a preset']")
    page.fill("dialog input", "Pirate")
    page.click("dialog .pz-primary")
    expect(page.locator("#pz-preset option:checked")).to_have_text("Pirate")
    page.select_option("#pz-preset", label="Exact (temperature 0)")
    assert page.input_value("#pz-system") == ""
    assert page.input_value("#pz-temperature") == "0"
    page.select_option("#pz-preset", label="Pirate")
    assert (page.input_value("#pz-system"), page.input_value("#pz-temperature")) == ("Arr.", "0.3")
    page.fill("#pz-top_k", "7")
    page.click("[aria-label='Bring the preset up to date']")
    expect(page.locator("[aria-label='Bring the preset up to date']")).to_be_disabled()
    mine = client.get("/api/presets").json()["presets"][-1]
    assert (mine["name"], mine["sampling"]) == ("Pirate", {"temperature": 0.3, "top_k": 7})
    ask(page, "Hello?")
    expect(page.locator(".pz-message-stats")).to_be_visible(timeout=WAIT_MS)
    chat = newest(client)
    assert (chat["system_prompt"], chat["sampling"]) == ("Arr.", {"temperature": 0.3, "top_k": 7})


def test_an_answer_is_gone_on_with_and_versions_are_stepped_through(tab: Tab, client: Client) -> None:
    page = tab.go("/chat")
    ask(page, "SLOW ENDLESS")
    page.wait_for_function("document.querySelector('.pz-message-assistant .pz-message-text')?.textContent.length > 9")
    page.keyboard.press("Escape")
    expect(page.locator(".pz-message-stats")).to_contain_text("stopped at token", timeout=WAIT_MS)
    first = str(page.text_content(".pz-message-assistant .pz-message-text"))
    page.click("[aria-label='Go on with this answer']")
    page.wait_for_function(
        "n => document.querySelector('.pz-message-assistant .pz-message-text')?.textContent.length > n",
        arg=len(first) + 5,
    )
    page.keyboard.press("Escape")
    expect(page.locator(".pz-versions")).to_contain_text("2/2", timeout=WAIT_MS)
    assert str(page.text_content(".pz-message-assistant .pz-message-text")).startswith(first.strip())
    page.locator(".pz-chat-heading").click()
    page.keyboard.press("[")
    expect(page.locator(".pz-versions")).to_contain_text("1/2")
    assert page.text_content(".pz-message-assistant .pz-message-text") == first
    page.keyboard.press("]")
    expect(page.locator(".pz-versions")).to_contain_text("2/2")


def test_five_hundred_messages_stay_smooth(tab: Tab, client: Client) -> None:
    """Not by the clock, which says how busy the machine is: by what is drawn, and drawn anew for each piece of text."""
    turns = [
        {"role": ("user", "assistant")[number % 2], "content": f"**Message** {number}\n\n```python\nx = {number}\n```"}
        for number in range(500)
    ]
    chat = imported(client, turns)
    page = tab.go(f"/chat?c={chat}")
    expect(page.locator(".pz-message")).to_have_count(60, timeout=WAIT_MS)
    page.click(".pz-thread-list > button >> text=440")
    expect(page.locator(".pz-message")).to_have_count(120)
    touched = page.evaluate(
        """async (id) => {
          const { createThread } = await import('/assets/js/chat_thread.js');
          const { MessageTree } = await import('/assets/js/chat_tree.js');
          const chat = await (await fetch(`/api/conversations/${id}`)).json();
          const thread = createThread({});
          document.body.append(thread.element);
          const tree = new MessageTree(chat.messages);
          const streaming = { ...chat.messages.at(-1), id: 'new', parent_id: chat.active_leaf_id, content: '',
                              state: 'streaming' };
          tree.put(streaming);
          thread.show({ ...chat, active_leaf_id: 'new' }, tree, true);
          const drawn = thread.element.querySelectorAll('.pz-message').length;
          const seen = new Set();
          new MutationObserver((found) => {
            for (const { target } of found) {
              const node = target.nodeType === Node.ELEMENT_NODE ? target : target.parentElement;
              seen.add(node.closest('[data-id]')?.dataset.id ?? 'list');
            }
          }).observe(thread.element, { subtree: true, childList: true, characterData: true, attributes: true });
          for (let piece = 0; piece < 200; piece += 1) {
            tree.extend('new', 5 * piece, 'word ');
            thread.textArrived('new');
          }
          await new Promise((resolve) => setTimeout(resolve, 300));
          const text = thread.element.querySelector('[data-id=new] .pz-message-text').textContent;
          thread.element.remove();
          return [drawn, [...seen], text.trim().length];
        }""",
        chat,
    )
    assert touched == [60, ["new"], 999]


def test_a_stale_tab_never_overwrites(client: Client, browser: Browser) -> None:
    chat = imported(client, [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}])
    url = str(client.base_url).rstrip("/")
    with open_tab(browser, url) as tab:
        page = tab.go(f"/chat?c={chat}")
        expect(page.locator(".pz-message")).to_have_count(2)
        page.evaluate("document.title")  # the page stands
        version = client.get(f"/api/conversations/{chat}").json()["version"]
        page.route("**/generate", lambda route: route.continue_(post_data=stale(route.request.post_data, version - 1)))
        ask(page, "Mine")
        expect(page.locator(".pz-toast").first).to_be_visible(timeout=WAIT_MS)
        assert [each["content"] for each in client.get(f"/api/conversations/{chat}").json()["messages"]] == ["Q", "A"]
        expect(page.locator("#pz-message")).to_have_value("Mine", timeout=WAIT_MS)  # what was written is not lost


def stale(body: str | None, version: int) -> str:
    return json.dumps({**json.loads(body or "{}"), "version": version})
