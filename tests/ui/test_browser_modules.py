"""The browser modules by themselves: Markdown that cannot inject, text that arrives in pieces, gaps that stay gaps."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser import Tab

RENDER = """async (text) => {
  const { createMarkdownView } = await import("/assets/js/markdown.js");
  const node = document.createElement("div");
  document.querySelector("main").replaceChildren(node);
  const update = createMarkdownView(node);
  for (let end = 1; end <= text.length; end += 1) update(text.slice(0, end));
  await new Promise((resolve) => setTimeout(resolve, 60));
  const all = [...node.querySelectorAll("*")];
  return {
    tags: [...new Set(all.map((each) => each.tagName.toLowerCase()))],
    handlers: all.flatMap((each) => each.getAttributeNames()).filter((name) => name.startsWith("on")),
    links: all.filter((each) => each.href).map((each) => each.href),
    sources: all.filter((each) => each.hasAttribute("src")).length,
    text: node.textContent,
    hacked: window.hacked === true,
  };
}"""

ALLOWED = {
    *("p", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "strong", "em", "code", "a"),
    *("figure", "figcaption", "pre", "span", "button"),  # a code block with its copy button
}

ATTACKS = [
    "<script>window.hacked = true</script>",
    '<img src=x onerror="window.hacked = true">',
    "<svg/onload=window.hacked=true>",
    "<iframe srcdoc='<script>parent.hacked = true</script>'></iframe>",
    "[click](javascript:window.hacked=true)",
    "[click](JaVaScRiPt:window.hacked=true)",
    "[click](data:text/html,<script>window.hacked=true</script>)",
    '[a](https://x.example/" onmouseover="window.hacked=true)',
    "[![x](https://x.example/y.png)](vbscript:x)",
    '```"><script>window.hacked = true</script>\n<img src=x onerror="window.hacked=true">\n```',
    "`<img src=x onerror=window.hacked=true>`",
    "# <img src=x onerror=window.hacked=true>",
    "- <img src=x onerror=window.hacked=true>\n> <b onclick=window.hacked=true>b</b>",
    "**<img src=x onerror=window.hacked=true>** *<script>window.hacked=true</script>*",
    "&lt;img src=x onerror=window.hacked=true&gt; <!-- --><style>*{display:none}</style>",
    "\u202e<img\u2028src=x\u0000onerror=window.hacked=true>",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_markdown_never_becomes_markup_or_code(tab: Tab, attack: str) -> None:
    shown: dict[str, Any] = tab.page.evaluate(RENDER, attack)
    assert not shown["hacked"]
    assert shown["handlers"] == []
    assert shown["sources"] == 0
    assert set(shown["tags"]) <= ALLOWED
    assert all(link.startswith(("http://x.example/", "https://x.example/")) for link in shown["links"])
    assert tab.problems == []


def test_markdown_shows_what_it_knows(tab: Tab) -> None:
    source = (
        "# Title\n\nA **bold** *word* and `code`.\n\n1. one\n2. two\n\n> quoted\n\n"
        "```python\nx < 1\n```\n[l](https://x.example/a?b=1&c=2)"
    )
    shown = tab.page.evaluate(RENDER, source)
    assert {"h3", "strong", "em", "code", "ol", "li", "blockquote", "pre", "a"} <= set(shown["tags"])
    assert "x < 1" in shown["text"]
    assert shown["links"] == ["https://x.example/a?b=1&c=2"]


def test_a_growing_text_keeps_the_nodes_of_finished_blocks(tab: Tab) -> None:
    same = tab.page.evaluate(
        """async () => {
          const { createMarkdownView } = await import("/assets/js/markdown.js");
          const node = document.createElement("div");
          const update = createMarkdownView(node);
          update("first\\n\\nsecond");
          const first = node.firstChild;
          update("first\\n\\nsecond grows\\n\\nthird");
          return first === node.firstChild && node.childNodes.length === 3;
        }"""
    )
    assert same


def test_pieces_of_text_are_placed_by_code_points(tab: Tab) -> None:
    """The server counts characters, a browser counts UTF-16 units: a face is one of the first and two of the second."""
    result = tab.page.evaluate(
        """async () => {
          const { MessageTree } = await import("/assets/js/chat_tree.js");
          const tree = new MessageTree([{ id: "a", parent_id: null, role: "assistant", content: "😀" }]);
          const pieces = [["a", 1, "b😀"], ["a", 2, "😀c"], ["a", 9, "lost"], ["x", 0, "y"]];
          const steps = pieces.map((piece) => tree.extend(...piece));
          return [tree.byId.get("a").content, steps];
        }"""
    )
    assert result == ["😀b😀c", [True, True, False, False]]


def test_versions_are_siblings_and_a_choice_leads_to_the_newest_below(tab: Tab) -> None:
    result = tab.page.evaluate(
        """async () => {
          const { MessageTree } = await import("/assets/js/chat_tree.js");
          const m = (id, parent_id, role) => ({ id, parent_id, role, content: "" });
          const tree = new MessageTree([
            m("q", null, "user"),
            m("a1", "q", "assistant"),
            m("q2", "a1", "user"),
            m("a2", "q", "assistant"),
            m("a3", "q2", "assistant"),
          ]);
          const ids = (messages) => messages.map((message) => message.id);
          const versions = ids(tree.versions(tree.byId.get("a1")));
          return [ids(tree.path("a3")), versions, tree.newestLeaf("a1"), tree.newestLeaf("a2")];
        }"""
    )
    assert result == [["q", "a1", "q2", "a3"], ["a1", "a2"], "a3", "a2"]


def test_a_window_of_samples_keeps_gaps_and_its_length(tab: Tab) -> None:
    result = tab.page.evaluate(
        """async () => {
          const { SampleWindow } = await import("/assets/js/series.js");
          const window = new SampleWindow(20, { t: [100, 101], step_s: 1, columns: { a: [1, null], c: [7, 8] } });
          window.add({ t: 102.4, columns: { a: 2, b: 5 } });
          window.add({ t: 102.9, columns: { a: 3, b: null } });
          window.add({ t: 110, columns: { a: 4 } });
          const before = [[...window.t], [...window.get("a")], [...window.get("b")]];
          window.add({ t: 125, columns: { a: 6 } });
          const even = window.get("a").length === window.t.length;
          return [...before, window.t[0], even, window.get("none").every((x) => x === null)];
        }"""
    )
    assert result == [
        [100, 101, 102, 103, 109, 110],
        [1, None, 3, None, None, 4],
        [None, None, 5, None, None, None],
        109,
        True,
        True,
    ]


def test_seconds_that_are_not_written_yet_are_no_gap(tab: Tab) -> None:
    result = tab.page.evaluate(
        """async () => {
          const { SampleWindow } = await import("/assets/js/series.js");
          const history = { t: [100, 101, 102], step_s: 1, columns: { a: [1, null, null], b: [2, 3, null] } };
          const window = new SampleWindow(20, history);
          window.add({ t: 103, columns: { a: 4, b: 5 } });
          return [window.t, window.get("a"), window.get("b")];
        }"""
    )
    assert result == [[100, 101, 103], [1, None, 4], [2, 3, 5]]


def test_enter_in_a_dialogs_field_does_its_main_action_once_it_may(tab: Tab) -> None:
    tab.page.evaluate(
        """async () => {
          const { openDialog } = await import("/assets/js/dialog.js");
          const { button, h } = await import("/assets/js/dom.js");
          window.done = 0;
          window.main = button("go", () => (window.done += 1), { kind: "primary", disabled: true });
          openDialog({ title: "x", body: [h("p", {}, "text"), h("input", {})], actions: [button("no"), window.main] });
        }"""
    )
    tab.page.keyboard.type("typed at once")
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate("[document.querySelector('input').value, window.done]") == ["typed at once", 0]
    tab.page.evaluate("window.main.disabled = false")
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate("window.done") == 1


def test_a_composer_keeps_the_model_that_a_chat_was_led_with(tab: Tab) -> None:
    chosen = tab.page.evaluate(
        """async () => {
          const { createComposer } = await import("/assets/js/chat_composer.js");
          const composer = createComposer({ send: () => true, stop: () => {}, load: () => {} });
          const show = (models) => composer.show({ ready: models.length > 0, generating: false, models });
          const seen = [];
          composer.prefer("b"); // before anything is known of what is loaded
          for (const models of [["a"], ["a", "b"], ["a"], ["a", "b", "c"]]) {
            show(models);
            seen.push(composer.model());
          }
          const select = composer.element.querySelector("select");
          select.value = "c";
          select.dispatchEvent(new Event("change"));
          show(["b", "c"]);
          return [...seen, composer.model()];
        }"""
    )
    assert chosen == ["a", "b", "a", "b", "c"]


def test_small_numbers_are_no_zeros_and_zero_is_no_fraction(tab: Tab) -> None:
    shown = tab.page.evaluate(
        """async () => {
          const { bytes, parameters } = await import("/assets/js/i18n.js");
          return [bytes(0), bytes(2048), parameters(95_000), parameters(135e6)];
        }"""
    )
    assert shown == ["0 MiB", "2.00 KiB", "95 K", "135 M"]


def test_a_csv_holds_no_formula(tab: Tab) -> None:
    text = tab.page.evaluate(
        """async () => {
          const { csvText } = await import("/assets/js/plot_export.js");
          const lines = [{ name: "=1+1" }, { name: 'a,"b' }];
          const notes = ["Engine: x,=cmd()\\r\\n@y"];
          const values = { times: [0], columns: [[-1.5], [null]] };
          return csvText({ title: "T", definition: "D", unit: "", lines, notes, ...values });
        }"""
    )
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        'time (UTC),\'=1+1,"a,""b"',
        "1970-01-01T00:00:00.000Z,-1.5,",
    ]
    assert "# Engine: x;=cmd() @y" in text.splitlines()


def test_a_list_of_requests_that_stays_open_does_not_grow_for_ever(tab: Tab) -> None:
    longest, last = tab.page.evaluate(
        """async () => {
          const { api } = await import("/assets/js/api.js");
          const { live } = await import("/assets/js/live.js");
          const { RequestRows } = await import("/assets/js/request_rows.js");
          let take = null;
          live.subscribe = (topic, listener) => ((take = listener), () => {});
          api.requestPage = async () => ({ requests: [{ id: "newest" }], next_before: 7 });
          const rows = new RequestRows(() => {});
          await rows.search({});
          let longest = 0;
          for (let n = 0; n < 2500; n += 1) {
            take({ id: `r${n}` });
            longest = Math.max(longest, rows.rows.length);
            if (n % 100 === 0) await new Promise((resolve) => setTimeout(resolve));
          }
          return [longest, rows.nextBefore];
        }"""
    )
    assert longest < 1300
    assert last == 7


def test_what_the_topic_tells_while_a_list_is_fetched_stays_and_an_overtaken_answer_is_dropped(tab: Tab) -> None:
    during, overtaken, cut = tab.page.evaluate(
        """async () => {
          const { NewestRows } = await import("/assets/js/newest_rows.js");
          const rows = new NewestRows(4);
          const ids = () => rows.rows.map(({ id, state }) => id + (state ?? ""));
          const asked = [];
          const read = () => new Promise((answer) => asked.push(answer));
          rows.take({ id: "before" });
          const first = rows.fetch(read);
          rows.take({ id: "b", state: "ended" });
          rows.take({ id: "c" });
          asked[0]([{ id: "b", state: "running" }, { id: "a" }]);
          await first;
          const during = ids();
          const [older, newer] = [rows.fetch(read), rows.fetch(read)];
          asked[2]([{ id: "d" }, { id: "c" }]);
          asked[1]([{ id: "c" }]);
          await Promise.all([older, newer]);
          const overtaken = ids();
          for (const id of ["e", "f", "g"]) rows.take({ id });
          return [during, overtaken, ids()];
        }"""
    )
    assert during == ["c", "bended", "a"]
    assert overtaken == ["d", "c"]
    assert cut == ["g", "f", "e", "d"]
