// Draws a page's figures, then replaces what changes, without losing focus, selection or scroll positions.

const main = document.getElementById("main");
const figures = new Map();

function numbers(column) {
  return column.map((value) => (value === "NaN" ? NaN : value));
}

async function draw() {
  const data = document.getElementById("figures");
  if (!data) return;
  for (const [name, item] of Object.entries(JSON.parse(data.textContent))) {
    await drawFigure(name, item);
  }
  main.dataset.drawn = "";
}

async function drawFigure(name, item) {
  const target = main.querySelector(`figure[data-figure="${CSS.escape(name)}"] .fluence-figure`);
  if (!target) return;
  target.replaceChildren();
  figures.set(name, await window.fluenceFigure(target, item));
}

function updateFigure(name, change) {
  const figure = main.querySelector(`figure[data-figure="${CSS.escape(name)}"]`);
  const plot = figures.get(name);
  if (!figure || (change.drawn && !plot)) {
    complete();
    return;
  }
  setText(figure.querySelector("h2"), change.title);
  setText(figure.querySelector("figcaption"), change.text);
  if (!plot) return;
  figure.querySelector(".fluence-figure").hidden = !change.drawn;
  for (const [wanted, columns] of Object.entries(change.sources)) {
    const source = plot.document?.get_model_by_name(wanted);
    if (source) {
      source.data = Object.fromEntries(Object.entries(columns).map(([key, column]) => [key, numbers(column)]));
    }
  }
  for (const legend of plot.above.filter((each) => each.type === "Legend")) {
    for (const item of legend.items) item.visible = item.renderers.some((each) => each.data_source.get_length() > 0);
  }
  for (const rule of plot.tags) fitHeight(plot, rule, change.sources[rule.source]?.y ?? []);
}

// As `fit_height` of drawing.py.
function fitHeight(plot, rule, ys) {
  const lowest = ys.length ? Math.min(...ys) : 0;
  const height = Math.trunc(Math.min(rule.most, Math.max(rule.least, rule.base - rule.row * lowest)));
  if (plot.height !== height) plot.height = height;
}

// Adds the parts that the page lacks, and the figures that had no data: the server draws them.
let completing = false;

async function complete() {
  if (completing) return;
  completing = true;
  try {
    const answer = await fetch(location.href);
    if (!answer.ok || !window.fluenceFigure) {
      location.reload();
      return;
    }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const items = JSON.parse(page.getElementById("figures")?.textContent ?? "{}");
    let last = document.getElementById("connection");
    for (const part of page.querySelectorAll("[data-figure], [data-table]")) {
      const {figure, table} = part.dataset;
      const kind = figure === undefined ? `[data-table="${CSS.escape(table)}"]` : `[data-figure="${CSS.escape(figure)}"]`;
      const old = main.querySelector(kind);
      const missing = !old || (figure in items && !figures.has(figure));
      if (missing) {
        old?.remove();
        last.after(part);
        if (figure in items) await drawFigure(figure, items[figure]);
      }
      last = missing ? part : old;
    }
  } finally {
    completing = false;
  }
}

function setText(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

// Makes `old` equal to `wanted`, an element of the same kind, and keeps each part that is equal already.
function morph(old, wanted) {
  if (old.isEqualNode(wanted)) return;
  const [before, after] = [[...old.children], [...wanted.children]];
  const alike = before.length > 0 && after.length > 0 && before.every((child, i) => !after[i] || child.tagName === after[i].tagName);
  if (!alike || hasText(old) || hasText(wanted)) {
    const focused = old.contains(document.activeElement) && old !== document.activeElement;
    old.replaceChildren(...wanted.childNodes);
    if (focused) old.querySelector("a, button, input, [tabindex]")?.focus({ preventScroll: true });
    return;
  }
  for (const name of new Set([...old.getAttributeNames(), ...wanted.getAttributeNames()])) {
    const value = wanted.getAttribute(name);
    if (value === null) old.removeAttribute(name);
    else if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  after.forEach((child, i) => (before[i] ? morph(before[i], child) : old.append(child)));
  before.slice(after.length).forEach((child) => child.remove());
}

function hasText(element) {
  return [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
}

// While text of a table is selected, the table stays as it is; the newest state follows.
const waiting = new Map();

function updateTable(name, html) {
  const old = main.querySelector(`[data-table="${CSS.escape(name)}"]`);
  if (!old) {
    complete();
    return;
  }
  if (selected(old)) {
    waiting.set(name, html);
    return;
  }
  waiting.delete(name);
  const wanted = document.createElement("div");
  wanted.dataset.table = name;
  wanted.innerHTML = html;
  morph(old, wanted);
}

function selected(element) {
  const selection = document.getSelection();
  if (!selection || selection.isCollapsed) return false;
  return selection.containsNode(element, true);
}

document.addEventListener("selectionchange", () => {
  for (const [name, html] of waiting) updateTable(name, html);
});

// Hides what the newest state lacks, such as the verdicts of a pod that waits no more.
function showParts(parts) {
  for (const each of main.querySelectorAll("[data-table], [data-figure]")) {
    const {table, figure} = each.dataset;
    each.hidden = !parts.includes(table === undefined ? `figure ${figure}` : `table ${table}`);
  }
}

function apply(change) {
  if (change.parts) showParts(change.parts);
  if (change.summary !== undefined) {
    const text = document.createElement("p");
    text.innerHTML = change.summary;
    setText(document.getElementById("summary"), text.textContent);
  }
  if (change.notes !== undefined) setText(document.getElementById("notes"), change.notes);
  for (const [name, html] of Object.entries(change.tables ?? {})) updateTable(name, html);
  for (const [name, each] of Object.entries(change.figures ?? {})) updateFigure(name, each);
}

function follow() {
  if (!("live" in main.dataset)) return;
  const query = new URLSearchParams(location.search);
  query.set("since", main.dataset.number);
  const events = new EventSource(`events/${main.dataset.page}?${query}`);
  const connection = document.getElementById("connection");
  events.onopen = () => setText(connection, "");
  events.onmessage = (event) => {
    apply(JSON.parse(event.data));
    main.dataset.number = event.lastEventId;
  };
  events.addEventListener("end", () => {
    events.close();
    location.reload();
  });
  events.onerror = () => {
    setText(connection, "The connection is lost: what you see does not change until it is back.");
    if (events.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
  };
  addEventListener("pagehide", () => events.close());
}

await draw();
follow();
