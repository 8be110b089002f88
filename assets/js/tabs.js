// A row of tabs over one panel, as the ARIA practice has it: arrow keys move, the panel belongs to the chosen one.

import { h } from "./dom.js";

/** entries: [[name, label], ...]; {element, panel, show(name)}. */
export function createTabs(entries, label, onChoose) {
  const panel = h("div", { class: "pz-tab-panel", role: "tabpanel", id: "pz-tab-panel", tabindex: -1 });
  const buttons = entries.map(([name, text]) =>
    h(
      "button",
      {
        type: "button",
        class: "pz-tab",
        role: "tab",
        id: `pz-tab-${name}`,
        "aria-controls": panel.id,
        dataset: { tab: name },
        onclick: () => onChoose(name),
      },
      text,
    ),
  );
  const element = h("div", { class: "pz-tabs", role: "tablist", "aria-label": label, onkeydown: move }, buttons);

  function move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const to = { Home: 0, End: buttons.length - 1 }[event.key];
    if (step === undefined && to === undefined) return;
    event.preventDefault();
    const at = buttons.indexOf(document.activeElement);
    const next = buttons[to ?? (at + step + buttons.length) % buttons.length];
    next.focus();
    next.click();
  }

  function show(name) {
    for (const node of buttons) {
      const chosen = node.dataset.tab === name;
      node.setAttribute("aria-selected", String(chosen));
      node.tabIndex = chosen ? 0 : -1;
      if (!chosen) continue;
      panel.setAttribute("aria-labelledby", node.id);
      reveal(node);
    }
  }

  return { element, panel, show };
}

/** On a narrow screen the row scrolls: the chosen tab is never outside of it. */
export function reveal(tab) {
  requestAnimationFrame(() => tab.scrollIntoView({ inline: "center", block: "nearest" }));
}
