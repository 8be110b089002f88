"""Thoughts in the chat: open while they come, folded when the answer begins, and as the reader leaves them then."""

from __future__ import annotations

from typing import Any

from tests.browser import Tab

# Draws one message in each of the states given, clicking on the summary before those that say so.
PLAY = """async (states) => {
  const { createMessageView } = await import("/assets/js/chat_message.js");
  const base = { id: "a", role: "assistant", state: "streaming", content: "", reasoning_content: "", stats: null };
  const view = createMessageView(base);
  document.querySelector("main").replaceChildren(view.element);
  const thoughts = view.element.querySelector("details");
  const seen = [];
  for (const { click, ...changes } of states) {
    if (click) thoughts.querySelector("summary").click();
    const message = { ...base, ...changes };
    view.update(message, { versions: [message], canGenerate: true, actions: {}, nameModel: false });
    seen.push({
      shown: !thoughts.hidden,
      open: thoughts.open,
      live: thoughts.classList.contains("pz-thoughts-live"),
      waiting: view.element.classList.contains("pz-waiting"),
      label: thoughts.querySelector("summary").textContent,
      thoughts: thoughts.querySelector(".pz-thoughts-text").textContent,
      items: thoughts.querySelectorAll("li").length,
      answer: view.body.hidden ? null : view.body.textContent,
      foot: view.foot.textContent,
    });
  }
  return { seen, hacked: window.hacked === true };
}"""
LIVE: dict[str, Any] = {"reasoning_content": "Hm."}
ANSWERING = LIVE | {"content": "Yes."}
STATS = {"num_prompt_tokens": 4, "num_output_tokens": 9, "reasoning_s": 12.34}
DONE = ANSWERING | {"state": "complete", "stats": STATS, "finish_reason": "stop"}


def play(tab: Tab, *states: dict[str, Any]) -> list[dict[str, Any]]:
    played = tab.page.evaluate(PLAY, list(states))
    assert not played["hacked"]
    assert tab.problems == []
    seen: list[dict[str, Any]] = played["seen"]
    return seen


def test_thoughts_are_open_while_they_come_and_fold_when_the_answer_begins(tab: Tab) -> None:
    waiting, thinking, answering, done = play(tab, {}, LIVE, ANSWERING, DONE)
    assert (waiting["shown"], waiting["waiting"]) == (False, True)
    assert (thinking["shown"], thinking["open"], thinking["live"], thinking["waiting"]) == (True, True, True, False)
    assert (thinking["label"], thinking["thoughts"], thinking["answer"]) == ("Thinking…", "Hm.", None)
    assert (answering["shown"], answering["open"], answering["live"]) == (True, False, False)
    assert (answering["label"], answering["answer"]) == ("Thoughts", "Yes.")
    assert (done["open"], done["label"], done["answer"]) == (False, "Thought for 12.3 s", "Yes.")


def test_what_the_reader_opened_or_folded_stays_so(tab: Tab) -> None:
    more = LIVE | {"reasoning_content": "Hm. Well."}
    assert [each["open"] for each in play(tab, LIVE, more | {"click": True}, ANSWERING, DONE)] == [True, *[False] * 3]
    opened = play(tab, LIVE, ANSWERING, ANSWERING | {"click": True}, DONE)
    assert [each["open"] for each in opened] == [True, False, True, True]


def test_an_answer_that_never_came_leaves_its_thoughts_open_and_says_so(tab: Tab) -> None:
    [cut] = play(tab, LIVE | {"state": "complete", "stats": STATS, "finish_reason": "length"})
    assert (cut["open"], cut["live"], cut["answer"]) == (True, False, None)
    assert "ended within its thoughts" in cut["foot"]


def test_an_answer_without_thoughts_shows_none(tab: Tab) -> None:
    [plain] = play(tab, {"content": "Yes.", "state": "complete"})
    assert (plain["shown"], plain["answer"]) == (False, "Yes.")


def test_thoughts_are_markdown_that_cannot_inject(tab: Tab) -> None:
    text = "1. <img src=x onerror='window.hacked = true'>\n2. **so**"
    [shown] = play(tab, LIVE | {"reasoning_content": text})
    assert shown["items"] == 2
    assert "<img" in shown["thoughts"]


def test_pieces_of_thoughts_and_answer_are_placed_apart(tab: Tab) -> None:
    result = tab.page.evaluate(
        """async () => {
          const { MessageTree } = await import("/assets/js/chat_tree.js");
          const start = { id: "a", parent_id: null, role: "assistant", content: "", reasoning_content: "🦊" };
          const tree = new MessageTree([start]);
          const pieces = [["a", 1, "b", "reasoning_content"], ["a", 0, "Y"], ["a", 1, "es"]];
          const steps = pieces.map((piece) => tree.extend(...piece));
          steps.push(tree.extend("a", 1, "bc", "reasoning_content"), tree.extend("a", 9, "x", "reasoning_content"));
          return [tree.byId.get("a").content, tree.byId.get("a").reasoning_content, steps];
        }"""
    )
    assert result == ["Yes", "🦊bc", [True, True, True, True, False]]
