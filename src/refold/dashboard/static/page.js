// What every page does: the switch between light and dark, and looking again when something has changed.
//
// The server renders everything. After an event this script fetches the same address again, and replaces the elements with
// `data-live` whose content differs. The part with the keyboard's focus is left alone until the focus is elsewhere.

const root = document.documentElement;
const state = document.querySelector("[data-live-state]");

function showTheme() {
  const button = document.querySelector("[data-theme-switch]");
  if (!button) return;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  button.hidden = false;
  button.textContent = isDark ? "Light" : "Dark";
  button.setAttribute("aria-label", isDark ? "Use light colours" : "Use dark colours");
  button.onclick = () => {
    root.dataset.theme = isDark ? "light" : "dark";
    document.cookie = `theme=${root.dataset.theme}; Path=/; Max-Age=31536000; SameSite=Strict`;
    showTheme();
  };
}

function showTimes() {
  for (const one of document.querySelectorAll("time[datetime]")) {
    if (!one.title) one.title = new Date(one.dateTime).toLocaleString();
  }
}

let isLooking = false;
let isAsked = false;
// Whether a part was left alone because it had the focus, although its content has changed.
let isBehind = false;

export async function look() {
  if (isLooking) {
    isAsked = true;
    return;
  }
  isLooking = true;
  try {
    const response = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "manual" });
    if (response.ok) replace(new DOMParser().parseFromString(await response.text(), "text/html"));
  } catch {
    // The next event looks again.
  }
  isLooking = false;
  if (isAsked) {
    isAsked = false;
    setTimeout(look, 300);
  }
}

function replace(fresh) {
  isBehind = false;
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(part.id);
    if (!other || part.innerHTML === other.innerHTML) continue;
    if (part.contains(document.activeElement)) {
      isBehind = true;
      continue;
    }
    const open = new Set([...part.querySelectorAll("details[open]")].map((one) => one.id));
    const made = document.importNode(other, true);
    for (const one of made.querySelectorAll("details")) if (one.id && open.has(one.id)) one.open = true;
    made.classList.add("changed");
    part.replaceWith(made);
    made.dispatchEvent(new CustomEvent("refold:replaced", { bubbles: true }));
  }
  showTimes();
  refreshSoon();
}

let source = null;
let timer = 0;

function listen() {
  const kinds = document.body.dataset.events;
  if (!kinds || source || document.hidden) return;
  source = new EventSource("/live");
  source.onopen = () => say("on", "live");
  source.onerror = () => say("off", "not live");
  for (const kind of kinds.split(" ")) {
    source.addEventListener(kind, () => {
      clearTimeout(timer);
      timer = setTimeout(look, 150);
    });
  }
}

function stop() {
  source?.close();
  source = null;
  say("off", "paused");
}

function say(value, text) {
  if (!state) return;
  state.hidden = false;
  state.dataset.state = value;
  state.textContent = text;
}

// A page that waits for work in progress says how often to look.
let refreshTimer = 0;
function refreshSoon() {
  clearTimeout(refreshTimer);
  const waiting = document.querySelector("[data-refresh-ms]");
  if (waiting) refreshTimer = setTimeout(look, Number(waiting.dataset.refreshMs));
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    stop();
  } else {
    listen();
    look();
  }
});
document.addEventListener("focusout", () => {
  if (isBehind) setTimeout(look); // when the focus has arrived elsewhere
});
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submit-on-change]")) event.target.form.requestSubmit();
});

// A part that takes longer is a view of its own: it is loaded when the page is there.
async function loadPart(part) {
  part.setAttribute("aria-busy", "true");
  try {
    const response = await fetch(part.dataset.load, { headers: { accept: "text/html" } });
    const other = new DOMParser().parseFromString(await response.text(), "text/html").getElementById(part.id);
    if (response.ok && other) part.replaceChildren(...document.importNode(other, true).childNodes);
  } catch {
    // Its link stays.
  }
  part.removeAttribute("aria-busy");
}

showTheme();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
showTimes();
document.querySelectorAll("[data-load]").forEach(loadPart);
listen();
refreshSoon();
root.dataset.ready = String(Math.round(performance.now()));
