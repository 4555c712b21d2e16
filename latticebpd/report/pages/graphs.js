"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const by = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const ROW = 24, LEFT = 34, STATES = {
  not_right: "not yet right", newly_right: "newly right", settled: "settled", ahead: "right ahead of the frontier"};
let chosen = 0, cursor = null, timer = null, CELL = 40;

function make(name, attributes, parent, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}
const percent = p => (100 * p).toFixed(p < 0.1 ? 1 : 0) + " %";

function show(lines, x, y) {
  const tip = by("tip");
  tip.replaceChildren(...lines.flatMap((line, i) => i ? [document.createElement("br"), line] : [line]));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(8, Math.min(x + 12, innerWidth - box.width - 8)) + "px";
  tip.style.top = (y + 16 + box.height > innerHeight ? Math.max(8, y - box.height - 10) : y + 16) + "px";
}
function hide() { by("tip").hidden = true; }

function aboutCell(text, number, place) {
  const value = text.values[number + 1][place] || "no value yet", p = text.probabilities[number][place];
  const lines = [`iteration ${number + 1}, token ${place + 1}: ${value}`, STATES[text.cells[number][place]]];
  if (p !== null) lines[1] += `, probability ${percent(p)}`;
  if (value !== text.pieces[place]) lines.push(`will be ${text.pieces[place]}`);
  lines.push(text.classes[place]);
  const waits = text.waits.filter(wait => wait.place === place).map(wait => text.pieces[wait.on]);
  lines.push(waits.length ? `waited for ${waits.join(", ")}` : "waited for nothing");
  return lines;
}
function aboutEdge(text, wait) {
  const lines = [`${text.pieces[wait.place]} waited for ${text.pieces[wait.on]}`];
  lines.push(wait.probability_without === null ? "through guesses that were not right themselves"
    : `without it, probability ${percent(wait.probability_without)}`);
  if (wait.redundant) lines.push("redundant: other edges imply it");
  return lines;
}

function draw() {
  const text = data.texts[chosen], passes = text.cells.length, columns = text.pieces.length, svg = by("picture");
  const waits = text.waits.filter(wait => by("all").checked || !wait.redundant);
  CELL = Math.max(40, Math.min(60, (by("scroll").clientWidth - LEFT - 22) / columns));
  const longest = Math.max(1, ...waits.map(wait => wait.place - wait.on));
  const arcs = Math.min(150, 22 + 14 * longest), letters = Math.max(...text.pieces.map(piece => piece.length));
  const below = 16 + 5.2 * Math.min(letters, 22), top = arcs + 10,
    width = LEFT + columns * CELL + 12, height = top + passes * ROW + below;
  const x = place => LEFT + (place + .5) * CELL;
  svg.replaceChildren();
  svg.setAttribute("width", width); svg.setAttribute("height", height);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const size = {viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 6, markerHeight: 6};
  const defs = make("defs", {}, svg), marker = make("marker", {id: "head", ...size, orient: "auto"}, defs);
  make("path", {d: "M0 0L8 4L0 8z", fill: "var(--faint)"}, marker);
  for (const wait of waits) {
    const lift = (arcs - 8) * (wait.place - wait.on) / longest * 4 / 3, from = x(wait.on), to = x(wait.place);
    const d = `M${from} ${arcs}C${from} ${arcs - lift} ${to} ${arcs - lift} ${to} ${arcs - 5}`;
    const kind = "edge" + (wait.redundant ? " redundant" : "");
    const edge = make("path", {d, class: kind, "marker-end": "url(#head)"}, svg);
    edge.wait = wait;
    const touch = make("path", {d, class: "touch"}, svg);
    touch.onpointermove = event => {
      edge.classList.add("chosen");
      show(aboutEdge(text, wait), event.clientX, event.clientY);
    };
    touch.onpointerleave = () => { edge.classList.remove("chosen"); hide(); };
  }
  for (let place = 0; place < columns; place++) {
    make("circle", {cx: x(place), cy: arcs, r: 3.5, class: "dot", "data-place": place}, svg);
    const label = text.pieces[place].length > 22 ? text.pieces[place].slice(0, 21) + "…" : text.pieces[place];
    const turned = `translate(${x(place) + 4} ${top + passes * ROW + 12}) rotate(-45)`;
    make("text", {transform: turned, "text-anchor": "end"}, svg, label);
  }
  for (let number = 0; number < passes; number++) {
    make("text", {x: LEFT - 6, y: top + (number + .65) * ROW, "text-anchor": "end"}, svg, number + 1);
    const row = make("g", {"data-number": number}, svg);
    for (let place = 0; place < columns; place++) {
      const state = text.cells[number][place];
      const corner = {x: LEFT + place * CELL + 1, y: top + number * ROW + 1};
      const cell = make("rect", {...corner, width: CELL - 2, height: ROW - 2, rx: 2, class: state}, row);
      cell.onpointermove = event => show(aboutCell(text, number, place), event.clientX, event.clientY);
      cell.onpointerleave = hide;
      if (state !== "newly_right") continue;
      const middle = {x: x(place), y: top + (number + .5) * ROW, class: "number"};
      make("text", middle, row, text.probabilities[number][place].toFixed(2));
    }
  }
  svg.top = top;
  svg.cursorBox = make("rect", {class: "cursor", width: CELL, height: ROW, visibility: "hidden"}, svg);
  step();
}

function step() {
  const text = data.texts[chosen], at = +by("slider").value, passes = text.cells.length;
  by("slider").setAttribute("aria-valuetext", at ? `after iteration ${at} of ${passes}` : "before the first iteration");
  by("at").textContent = `${at} of ${passes}: ${text.frontier[at]} of ${text.pieces.length} tokens settled`;
  const spans = text.values[at].map((value, place) => {
    const span = document.createElement("span");
    span.textContent = (value || "·").replace(/^▁/, " ");
    span.className = at ? text.cells[at - 1][place] : "not_right";
    return span;
  });
  by("iterate").replaceChildren(...spans);
  const rows = by("picture").querySelectorAll("g[data-number]");
  for (const row of rows) row.classList.toggle("later", +row.dataset.number >= at);
  const right = place => at ? text.cells[at - 1][place] !== "not_right" : text.values[0][place] === text.pieces[place];
  for (const dot of by("picture").querySelectorAll(".dot")) dot.classList.toggle("right", right(+dot.dataset.place));
  for (const edge of by("picture").querySelectorAll(".edge")) edge.classList.toggle("open", !right(edge.wait.on));
}

function choose(index) {
  stop();
  chosen = (index + data.texts.length) % data.texts.length;
  cursor = null;
  const text = data.texts[chosen], slider = by("slider");
  by("text").value = chosen;
  by("source").textContent = text.source;
  slider.max = text.cells.length; slider.value = text.cells.length;
  draw();
}
function stop() { clearInterval(timer); timer = null; by("play").textContent = "Play"; }
function play() {
  if (timer) return stop();
  const slider = by("slider");
  if (slider.value === slider.max) slider.value = 0;
  by("play").textContent = "Pause"; step();
  timer = setInterval(() => {
    slider.value = +slider.value + 1;
    step();
    if (slider.value === slider.max) stop();
  }, 450);
}
function move(event) {
  const text = data.texts[chosen];
  const steps = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
  if (event.key === "Escape") { hide(); return; }
  if (!steps) return;
  event.preventDefault();
  const clamp = (value, end) => Math.max(0, Math.min(end - 1, value));
  const moved = (old, i, count) => clamp(old[i] + steps[i], count);
  cursor = cursor ? [moved(cursor, 0, text.cells.length), moved(cursor, 1, text.pieces.length)] : [0, 0];
  const box = by("picture").cursorBox, [number, place] = cursor;
  box.setAttribute("x", LEFT + place * CELL); box.setAttribute("y", by("picture").top + number * ROW);
  box.setAttribute("visibility", "visible");
  const scroll = by("scroll"), left = LEFT + place * CELL;
  if (left < scroll.scrollLeft + LEFT) scroll.scrollLeft = left - LEFT;
  if (left + CELL > scroll.scrollLeft + scroll.clientWidth) scroll.scrollLeft = left + CELL - scroll.clientWidth + 8;
  box.scrollIntoView({block: "nearest", inline: "nearest"});
  const seen = box.getBoundingClientRect();
  show(aboutCell(text, number, place), seen.left + CELL / 2, seen.bottom - 8);
}

data.texts.forEach((text, i) => {
  const option = document.createElement("option");
  option.value = i;
  option.textContent = `${i + 1}. ${text.source}`.slice(0, 90);
  by("text").append(option);
});
by("text").onchange = event => choose(+event.target.value);
by("previous").onclick = () => choose(chosen - 1);
by("next").onclick = () => choose(chosen + 1);
by("slider").oninput = () => { stop(); step(); };
by("play").onclick = play;
by("all").onchange = draw;
by("picture").onkeydown = move;
by("picture").onblur = () => { hide(); by("picture").cursorBox.setAttribute("visibility", "hidden"); };
addEventListener("scroll", hide, {passive: true});
addEventListener("resize", draw);
choose(0);
