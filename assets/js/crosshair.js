// One moment pointed at, in all plots of a page at once. Knows nothing of what they show.

/** {join(plot), leave(plot), show(time|null), onMove(listener)}; a plot has `placeCrosshair(time|null)`. */
export function createCrosshair() {
  const plots = new Set();
  const listeners = new Set();
  let time = null;
  return {
    join: (plot) => plots.add(plot),
    leave: (plot) => plots.delete(plot),
    onMove(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    show(moment) {
      if (moment === time) return;
      time = moment;
      for (const plot of plots) plot.placeCrosshair(moment);
      for (const listener of listeners) listener(moment);
    },
  };
}
