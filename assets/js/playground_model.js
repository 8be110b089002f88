// Which of the loaded models the playground asks. Shown only where there is a choice; its value is the model's id.

import { fill, h } from "./dom.js";
import { servingEngines } from "./engine_state.js";
import { t } from "./i18n.js";
import { live } from "./live.js";

export function mount(element, { props }) {
  const select = h("select", { class: "pz-field" });
  const field = h("label", { class: "pz-label", hidden: true }, t("model"), select);
  let offered = "";
  fill(element, field);
  const choose = (id) => {
    if (props.value !== id) props.value = id;
  };
  select.addEventListener("change", () => choose(select.value));
  live.subscribe("header", (state) => {
    const models = servingEngines(state).map((engine) => engine.model_id);
    field.hidden = models.length < 2;
    if (offered === models.join()) return;
    offered = models.join();
    const before = select.value;
    fill(
      select,
      models.map((id) => h("option", { value: id }, id)),
    );
    select.value = models.includes(before) ? before : (models[0] ?? "");
    choose(select.value || null);
  });
}
