// Draws what depends on a choice of the reader: one recording over time, and the table of all of them.
const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = { plot: 230, strip: 34, top: 18, between: 26, bottom: 26 };
const LEFT = 54, RIGHT = 12;
const KINDS = { summarise: "summarised", reduce: "reduced", rewrite: "rewritten" };
const number = new Intl.NumberFormat("en");
const byId = (id) => document.getElementById(id);

const data = await unpack(byId("data").textContent);
const chosen = { window: 0, candidate: 0, recording: null, sort: "demands", down: true };

function make(tag, attributes = {}, ...children) {
  const isDrawn = ["svg", "path", "rect", "text", "g", "title"].includes(tag);
  const element = isDrawn ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

// Rows of the chosen window and candidate, as indices into the columns.
function rows() {
  const all = data.recording.map((_, at) => at);
  return all.filter((at) => data.window[at] === chosen.window && data.candidate[at] === chosen.candidate);
}

function current() {
  return rows().find((at) => data.recording[at] === chosen.recording);
}

function chooseSome() {
  const there = rows();
  if (current() !== undefined || !there.length) return;
  const weight = (at) => data.compactions[at] * 1e6 + data.calls[at] + (data.series[at] ? 1e12 : 0);
  chosen.recording = data.recording[there.reduce((best, at) => (weight(at) > weight(best) ? at : best))];
}

function select(label, options, value, onChange, kind = "") {
  const box = make("select");
  for (const [key, text] of options) box.append(make("option", { value: key }, text));
  box.value = value;
  box.addEventListener("change", () => onChange(Number(box.value)));
  return make("label", { class: kind }, label, box);
}

function drawChoice() {
  const change = (name) => (value) => { chosen[name] = value; draw(); };
  const names = rows().map((at) => data.recording[at]);
  byId("choice").replaceChildren(
    select("Recording", names.map((at) => [at, data.recordings[at][0]]), chosen.recording, change("recording"), "long"),
    select("Window", data.windows.map((size, at) => [at, `${number.format(size)} tokens`]), chosen.window, change("window")),
    select("Candidate", data.candidates.map((name, at) => [at, name]), chosen.candidate, change("candidate")),
  );
}

function drawTimeline() {
  const at = current(), place = byId("timeline");
  const series = at === undefined ? null : data.series[at];
  byId("changes").replaceChildren();
  if (!series) {
    const why = at === undefined ? "No recording is longer than this window." : "This recording is in the table only.";
    place.replaceChildren(make("p", { class: "empty" }, why));
    return;
  }
  const { sizes, cached, changes } = restored(at);
  place.replaceChildren(timeline(sizes, cached, changes, data.windows[chosen.window], Math.max(240, byId("over-time").clientWidth - 26)));
  watch(place, sizes, cached, changes);
  drawChanges(changes);
}

// Contexts, cache hits and changes from what was not expected of them; `Series` in report.py is the other half.
function restored(at) {
  const [unexpected, gaps, misses, codes] = data.series[at];
  const added = data.added[data.recording[at]], frame = data.frame[data.recording[at]];
  let call = 0, before = 0;
  const rewritten = new Set(gaps.map((gap) => (call += gap)));
  const expected = [], sizes = [], cached = [];
  unexpected.forEach((difference, at) => {
    expected[at] = before + added[at];
    sizes[at] = expected[at] + difference;
    const whole = frame + sizes[at], known = at && !rewritten.has(at) ? Math.min(frame + before, whole) : 0;
    cached[at] = misses[at] + (whole ? Math.floor((100 * known) / whole + 0.5) : 0);
    before = sizes[at];
  });
  return { sizes, cached, changes: changesOf(codes, rewritten, expected, sizes) };
}

function changesOf(codes, rewritten, expected, sizes) {
  const changes = [];
  let call = 0;
  for (let at = 0; at < codes.length;) {
    call += codes[at++];
    const [what, head, tail] = data.kinds[codes[at++]];
    const why = tail == null ? head : head + number.format(codes[at++] + expected[call]) + tail;
    changes.push({ call, what, why, before: expected[call], after: sizes[call] });
  }
  const told = new Set(changes.map((change) => change.call));
  for (const call of rewritten) {
    if (!told.has(call)) changes.push({ call, what: "rewrite", why: "", before: expected[call], after: sizes[call] });
  }
  return changes.sort((one, other) => one.call - other.call);
}

function timeline(sizes, cached, changes, limit, width) {
  const most = Math.max(limit, ...sizes) * 1.04;
  const right = width - RIGHT, floor = HEIGHT.top + HEIGHT.plot, strip = floor + HEIGHT.between;
  const wide = (right - LEFT) / sizes.length;
  const x = (call) => LEFT + (call + 0.5) * wide;
  const y = (tokens) => floor - (tokens / most) * HEIGHT.plot;
  const line = sizes.map((tokens, call) => `${x(call).toFixed(1)} ${y(tokens).toFixed(1)}`).join("L");
  const chart = make("svg", { width, height: strip + HEIGHT.strip + HEIGHT.bottom, class: "picture", role: "img", tabindex: 0 });
  chart.setAttribute("viewBox", `0 0 ${width} ${strip + HEIGHT.strip + HEIGHT.bottom}`);
  chart.setAttribute("aria-label", `${sizes.length} contexts, ${changes.length} changes. Arrow keys move through the calls.`);
  for (const tokens of ticks(most)) {
    chart.append(make("path", { class: "rule", d: `M${LEFT} ${y(tokens)}H${right}` }), tick(LEFT - 8, y(tokens) + 4, number.format(tokens), "end"));
  }
  chart.append(
    make("path", { class: "area", d: `M${x(0)} ${floor}L${line}L${x(sizes.length - 1)} ${floor}Z` }),
    make("path", { class: "level window", d: `M${LEFT} ${y(limit)}H${right}` }),
    tick(right, y(limit) - 5, "window", "end"),
    make("path", { class: "size", d: `M${line}` }),
    make("rect", { class: "lane-room", x: LEFT, y: strip, width: right - LEFT, height: HEIGHT.strip }),
    make("path", { class: "lane read", d: bars(cached, x, wide, strip + HEIGHT.strip) }),
    tick(LEFT - 8, strip + 11, "cache", "end"),
    tick(LEFT - 8, strip + 25, "hits", "end"),
    tick(LEFT - 8, strip + HEIGHT.strip + 18, "call", "end"),
  );
  for (const { call, what } of changes) chart.append(mark(what, x(call), y(sizes[call]), wide));
  for (const call of ticks(sizes.length)) {
    if (call >= 1) chart.append(tick(x(call - 1), strip + HEIGHT.strip + 18, number.format(call), "middle"));
  }
  chart.append(make("path", { class: "cursor", visibility: "hidden", d: `M0 ${HEIGHT.top}V${strip + HEIGHT.strip}` }));
  return chart;
}

function tick(x, y, text, anchor) {
  return make("text", { x, y, "text-anchor": anchor }, text);
}

function bars(cached, x, wide, floor) {
  const half = Math.max(0.4, wide * 0.42);
  return cached.map((share, call) => {
    const high = (share / 100) * HEIGHT.strip;
    return `M${(x(call) - half).toFixed(1)} ${floor}v${-high.toFixed(1)}h${(2 * half).toFixed(1)}v${high.toFixed(1)}z`;
  }).join("");
}

function mark(what, x, y, wide) {
  const half = Math.max(3.5, Math.min(7, wide));
  if (what === "summarise") return make("path", { class: "mark summarise", d: `M${x} ${y - half}l${half} ${half}l${-half} ${half}l${-half} ${-half}z` });
  return make("path", { class: "mark reduce", d: `M${x - 1.5} ${y - 10}h3v7h-3z` });
}

function ticks(most) {
  const rough = most / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].find((factor) => factor * power >= rough) * power);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, at) => at * step);
}

// A cursor that follows the pointer or the arrow keys, and tells about the call under it.
function watch(place, sizes, cached, changes) {
  const chart = place.querySelector("svg"), cursor = chart.querySelector(".cursor");
  const told = make("div", { class: "told", role: "status", hidden: "" });
  place.append(told);
  let call = -1;
  const show = (next) => {
    call = Math.max(0, Math.min(sizes.length - 1, next));
    const wide = (chart.clientWidth - LEFT - RIGHT) / sizes.length, x = LEFT + (call + 0.5) * wide;
    cursor.setAttribute("transform", `translate(${x} 0)`);
    cursor.setAttribute("visibility", "visible");
    const lines = changes.filter((one) => one.call === call).map((one) => make("div", {}, sentence(one)));
    const facts = `${number.format(sizes[call])} tokens, ${cached[call]} % from the cache`;
    told.replaceChildren(make("b", {}, `Call ${call + 1}`), facts, ...lines.slice(0, 4));
    told.hidden = false;
    const isLate = call > sizes.length / 2;
    told.style.left = isLate ? "auto" : `${x + 24}px`;
    told.style.right = isLate ? `${chart.clientWidth - x + 24}px` : "auto";
  };
  const hide = () => { told.hidden = true; cursor.setAttribute("visibility", "hidden"); };
  chart.addEventListener("pointermove", (event) => {
    const wide = (chart.clientWidth - LEFT - RIGHT) / sizes.length;
    show(Math.floor((event.clientX - chart.getBoundingClientRect().left - LEFT) / wide));
  });
  chart.addEventListener("pointerleave", hide);
  chart.addEventListener("blur", hide);
  chart.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    show(call + by);
  });
}

function sentence({ what, why }) {
  return why ? `${KINDS[what] ?? what}: ${why}` : (KINDS[what] ?? what);
}

function drawChanges(changes) {
  if (!changes.length) return;
  const heads = ["call", "what", "why", "tokens before", "after"].map((head) => make("th", { scope: "col" }, head));
  const calls = new Map(changes.map(({ call }) => [call, changes.filter((one) => one.call === call)]));
  const lines = [...calls.values()].map((made) => {
    const { call, before, after } = made[0];
    const each = (name) => [...new Set(made.map(name).filter(Boolean))].join("; ") || "–";
    return make("tr", {},
      make("td", {}, number.format(call + 1)), make("td", {}, each((one) => KINDS[one.what] ?? one.what)),
      make("td", { class: "why" }, each((one) => one.why)),
      make("td", {}, number.format(before)), make("td", {}, number.format(after)));
  });
  byId("changes").replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...lines)));
}

const COLUMNS = [
  ["recording", "recording", (at) => data.recordings[data.recording[at]][0]],
  ["source", "source", (at) => data.recordings[data.recording[at]][1]],
  ["calls", "calls", (at) => data.calls[at]],
  ["demands", "old facts", (at) => data.demands[at]],
  ["old", "recall, %", (at) => data.old[at], 1],
  ["bound", "bound, %", (at) => data.bound[at], 1],
  ["lines", "lines, %", (at) => data.lines[at], 1],
  ["phrases", "phrases, %", (at) => data.phrases[at], 1],
  ["dollars", "$", (at) => data.dollars[at], 2],
  ...(data.paid ? [["paid", "summaries, $", (at) => data.paid[at], 4], ["failed", "failed", (at) => data.failed[at]]] : []),
  ["cache", "cache hits, %", (at) => data.cache[at], 1],
  ["rewrites", "rewrites", (at) => data.rewrites[at]],
  ["compactions", "compactions", (at) => data.compactions[at]],
  ["unsound", "refused", (at) => data.unsound[at]],
];

function sorted() {
  const value = COLUMNS.find(([name]) => name === chosen.sort)[2];
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  return rows().sort((one, other) => {
    const a = value(one), b = value(other);
    if (a === null || b === null) return (a === null) - (b === null);
    return chosen.down ? compare(b, a) : compare(a, b);
  });
}

function drawEvery() {
  const heads = COLUMNS.map(([name, title]) => {
    const button = make("button", { type: "button" }, title);
    button.addEventListener("click", () => {
      chosen.down = chosen.sort === name ? !chosen.down : !["recording", "source"].includes(name);
      chosen.sort = name;
      drawEvery();
      byId("every").querySelectorAll("thead button")[COLUMNS.findIndex(([other]) => other === name)].focus();
    });
    const order = chosen.sort === name ? (chosen.down ? "descending" : "ascending") : "none";
    return make("th", { scope: "col", "aria-sort": order }, button);
  });
  const body = make("tbody", {}, ...sorted().map(line));
  byId("every").replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body));
}

function line(at) {
  const [name, ...rest] = COLUMNS;
  const button = make("button", { type: "button", title: name[2](at) }, name[2](at));
  button.addEventListener("click", () => {
    chosen.recording = data.recording[at];
    draw();
    byId("over-time").scrollIntoView({ block: "start" });
  });
  const row = make("tr", {}, make("th", { scope: "row" }, button), ...rest.map((column) => cell(column, at)));
  if (data.recording[at] === chosen.recording) row.setAttribute("aria-current", "true");
  return row;
}

function cell([name, , value, digits = 0], at) {
  const found = value(at), isText = typeof found === "string";
  const text = found === null ? "–" : isText ? found : found.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const element = make("td", ["old", "cache"].includes(name) && found !== null ? { class: "share" } : {}, text);
  element.style.setProperty("--share", `${found ?? 0}%`);
  return element;
}

function draw() {
  chooseSome();
  drawChoice();
  drawTimeline();
  drawEvery();
}

// The reader's system decides between light and dark until the reader does.
function followTheme() {
  const button = byId("theme"), prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (prefersDark.matches ? "dark" : "light")) === "dark";
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; name(); });
  prefersDark.addEventListener("change", name);
  button.hidden = false;
  name();
}

for (const note of document.querySelectorAll(".script")) note.remove();
followTheme();
draw();
let width = byId("over-time").clientWidth;
new ResizeObserver(() => {
  if (width === byId("over-time").clientWidth) return;
  width = byId("over-time").clientWidth;
  drawTimeline();
}).observe(byId("over-time"));
