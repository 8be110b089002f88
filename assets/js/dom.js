// Builds DOM nodes. Text always becomes a text node: nothing here, or anywhere else, parses a string as HTML.

/** h("button", {class: "pz-button", onclick: f, "aria-label": "x"}, "text", node, null, [more]) */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style" || name === "dataset") assign(node[name], value);
    else if (name === "value" || name === "checked" || name === "disabled") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  append(node, children);
  return node;
}

function assign(target, values) {
  for (const [name, value] of Object.entries(values)) {
    if (name.startsWith("--")) target.setProperty(name, value);
    else target[name] = value;
  }
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
}

/** Replace all children of a node. */
export function fill(node, ...children) {
  node.replaceChildren();
  append(node, children);
  return node;
}

/** Change the text only when it differs, so that a selection or a screen reader is not disturbed. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** An icon of assets/icons, drawn in the colour of the text around it. */
export function icon(name) {
  return h("span", {
    class: "pz-icon",
    "aria-hidden": "true",
    style: { "--icon": `url("/assets/icons/${name}.svg")` },
  });
}

/** A button that shows only an icon; the label is for screen readers and the tooltip. */
export function iconButton(name, label, onclick, props = {}) {
  return h(
    "button",
    { type: "button", class: "pz-icon-button", title: label, "aria-label": label, onclick, ...props },
    icon(name),
  );
}

export function button(label, onclick, { kind = "secondary", iconName = null, ...props } = {}) {
  return h(
    "button",
    { type: "button", class: `pz-button pz-${kind}`, onclick, ...props },
    iconName && icon(iconName),
    h("span", {}, label),
  );
}
