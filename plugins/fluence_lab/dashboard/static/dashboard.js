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
  if (!figure) return;
  setText(figure.querySelector("figcaption"), change.text);
  if (change.item) {
    drawFigure(name, change.item);
    return;
  }
  for (const [wanted, columns] of Object.entries(change.sources)) {
    const source = figures.get(name)?.document?.get_model_by_name(wanted);
    if (source) {
      source.data = Object.fromEntries(Object.entries(columns).map(([key, column]) => [key, numbers(column)]));
    }
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
  if (!old) return;
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

// Whether the page has these tables and figures, and no other: what comes and goes needs a new page.
function hasParts(names) {
  const here = [...main.querySelectorAll("[data-table], [data-figure]")].map(({ dataset }) =>
    dataset.table === undefined ? `figures ${dataset.figure}` : `tables ${dataset.table}`,
  );
  return here.length === names.length && names.every((name) => here.includes(name));
}

function apply(change) {
  if (change.parts !== undefined && !hasParts(change.parts)) {
    location.reload();
    return;
  }
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
