// Settings, Records: what the database takes, how long what is kept, and whether texts are.
// Invariant: only what was changed here is sent, together with what stood there when it was read; where another tab has
// changed the same meanwhile, nothing is overwritten: its value is shown and the operator saves again.

import { api } from "./api.js";
import { button, fill, h, icon } from "./dom.js";
import { bytes, number, t } from "./i18n.js";
import { row } from "./settings_appearance.js";
import { attempt } from "./toast.js";

export function mount(panel) {
  const view = new Retention(panel);
  view.read();
  return { destroy: () => view.destroy() };
}

class Retention {
  #seen = {}; // name -> the value that stood there when it was read, null: none
  #fields = new Map(); // name -> {value(), show(value)}
  #gone = false;

  constructor(panel) {
    this.panel = panel;
    this.saved = h("span", { class: "pz-set-saved", role: "status" });
    this.problem = h("p", { class: "pz-problem", role: "alert", hidden: true });
    this.save = button(t("set_save"), () => this.#save(), { kind: "primary", disabled: true });
    fill(panel, h("p", { class: "pz-empty" }, t("set_reading")));
  }

  destroy() {
    this.#gone = true;
  }

  async read() {
    const storage = await attempt(() => api.storage());
    if (this.#gone) return;
    if (!storage) return void fill(this.panel, h("p", { class: "pz-empty" }, t("server_unreachable")));
    const rows = storage.retention.map((choice) => this.#number(choice));
    fill(
      this.panel,
      h("h2", { class: "pz-section" }, t("set_kept")),
      h(
        "div",
        { class: "pz-card pz-set-rows" },
        rows,
        this.#bodies(storage.store_bodies),
        h("div", { class: "pz-set-foot" }, this.save, this.saved),
        this.problem,
      ),
      h("h2", { class: "pz-section" }, t("set_database")),
      sizes(storage),
    );
    this.#changed();
  }

  #number({ name, value, default: standard, least, most, unit }) {
    this.#seen[name] = value;
    const field = h("input", {
      class: "pz-field pz-set-number",
      id: `pz-${name}`,
      type: "number",
      min: least,
      max: most,
      step: 1,
      required: true,
      value: String(value ?? standard),
      oninput: () => this.#changed(),
    });
    this.#fields.set(name, {
      value: () => (field.value === String(this.#seen[name] ?? standard) ? this.#seen[name] : Number(field.value)),
      show: (found) => (field.value = String(found ?? standard)),
      valid: () => field.validity.valid && field.value !== "",
    });
    const hint = t("set_range", { least: number(least), most: number(most), standard: number(standard) });
    const control = h("label", { class: "pz-set-with-unit" }, field, t(`set_unit_${unit}`));
    field.setAttribute("aria-label", t(`set_${name}`));
    return row(t(`set_${name}`), `${t(`set_${name}_hint`)} ${hint}`, control);
  }

  #bodies(value) {
    const name = "store_bodies";
    this.#seen[name] = value;
    const box = h("input", {
      type: "checkbox",
      id: "pz-store_bodies",
      checked: value === true,
      onchange: () => this.#changed(),
    });
    this.#fields.set(name, {
      value: () => (box.checked === (this.#seen[name] === true) ? this.#seen[name] : box.checked),
      show: (found) => (box.checked = found === true),
      valid: () => true,
    });
    const control = h("label", { class: "pz-check" }, box, t("set_store_bodies_on"));
    return row(t("set_store_bodies"), t("set_store_bodies_hint"), control);
  }

  #changes() {
    const changed = [...this.#fields].filter(([name, field]) => field.value() !== this.#seen[name]);
    return Object.fromEntries(changed.map(([name, field]) => [name, field.value()]));
  }

  #changed() {
    const valid = [...this.#fields.values()].every((field) => field.valid());
    const dirty = Object.keys(this.#changes()).length > 0;
    this.save.disabled = !dirty || !valid;
    this.saved.textContent = dirty
      ? t(valid ? "set_unsaved" : "out_of_range")
      : this.saved.dataset.done
        ? t("saved")
        : "";
  }

  async #save() {
    const changes = this.#changes();
    const expected = Object.fromEntries(Object.keys(changes).map((name) => [name, this.#seen[name]]));
    this.problem.hidden = true;
    try {
      const stored = await api.saveSettings(changes, expected);
      for (const name of Object.keys(changes)) this.#seen[name] = stored.settings[name] ?? null;
      this.saved.dataset.done = "true";
    } catch (error) {
      if (error.status === undefined) throw error;
      await this.#refused(error, Object.keys(changes));
    }
    this.#changed();
  }

  /** Show what stands there now; what was typed for other settings stays. */
  async #refused(error, names) {
    let text = error.status === 0 ? t("server_unreachable") : error.message;
    if (error.status === 409) {
      const stored = await api.settings();
      for (const name of names) {
        const now = stored[name] ?? null;
        if (now !== this.#seen[name]) this.#fields.get(name).show(now);
        this.#seen[name] = now;
      }
      text = t("set_changed_elsewhere");
    }
    fill(this.problem, icon("warning"), h("span", {}, text));
    this.problem.hidden = false;
  }
}

function sizes(storage) {
  const rows = Object.entries(storage.rows)
    .filter(([, count]) => count > 0)
    .sort(([, one], [, other]) => other - one);
  const line = ([name, count]) =>
    h("tr", {}, h("td", {}, h("code", {}, name)), h("td", { class: "pz-figure pz-right" }, number(count)));
  return h(
    "div",
    { class: "pz-card" },
    h(
      "p",
      { class: "pz-figure", dataset: { figure: "database" } },
      t("set_size", { size: bytes(storage.database_bytes), free: bytes(storage.disk_free_bytes) }),
    ),
    h("p", { class: "pz-hint" }, t("set_size_hint")),
    h(
      "div",
      { class: "pz-table-wrap" },
      h(
        "table",
        { class: "pz-table pz-set-table" },
        h("thead", {}, h("tr", {}, h("th", {}, t("set_table")), h("th", { class: "pz-right" }, t("set_rows")))),
        h("tbody", {}, rows.map(line)),
      ),
    ),
  );
}
