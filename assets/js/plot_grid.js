// Several plot cards that show one window. Owns their place and their end.

import { h } from "./dom.js";
import { createPlotCard } from "./plot_card.js";

/** specs: name -> see plot_card.js. {element, cards, destroy()} */
export function createPlotGrid(specs, tab) {
  const cards = Object.fromEntries(Object.entries(specs).map(([name, spec]) => [name, createPlotCard(name, spec)]));
  const all = Object.values(cards);
  const leave = [
    tab.onWindow((window, view) => {
      for (const card of all) card.draw(window, view);
    }),
    tab.onNewest((window) => {
      for (const card of all) card.showNewest(window);
    }),
  ];
  return {
    element: h(
      "div",
      { class: "pz-plots" },
      all.map((card) => card.element),
    ),
    cards,
    destroy() {
      for (const each of leave) each();
      for (const card of all) card.destroy();
    },
  };
}
