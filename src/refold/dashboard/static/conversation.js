// Pointing at a call of the picture tells about it; the arrow keys move from call to call. Every call is a link, so that
// the page works without this script too.

function plotOf(target) {
  return target instanceof Element ? target.closest("[data-plot]") : null;
}

function tell(link) {
  const plot = plotOf(link);
  const box = plot?.querySelector("[data-told]");
  if (!box) return;
  box.textContent = link.getAttribute("aria-label");
  box.hidden = false;
  const room = plot.getBoundingClientRect(), bar = link.getBoundingClientRect();
  const isLate = bar.left - room.left > room.width / 2;
  const x = isLate ? bar.left - room.left - box.offsetWidth - 12 : bar.right - room.left + 12;
  box.style.left = `${Math.max(0, Math.min(x, room.width - box.offsetWidth))}px`;
}

function hush(plot) {
  const box = plot?.querySelector("[data-told]");
  if (box) box.hidden = true;
}

function linkOf(target) {
  return target instanceof Element ? target.closest("[data-plot] a.target") : null;
}

document.addEventListener("pointerover", (event) => {
  const link = linkOf(event.target);
  if (link) tell(link);
});
document.addEventListener("pointerout", (event) => {
  if (linkOf(event.target) && !linkOf(event.relatedTarget)) hush(plotOf(event.target));
});
document.addEventListener("focusin", (event) => {
  const link = linkOf(event.target);
  if (link) tell(link);
});
document.addEventListener("focusout", (event) => {
  if (linkOf(event.target)) hush(plotOf(event.target));
});

const STEPS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };

document.addEventListener("keydown", (event) => {
  const link = linkOf(event.target), by = STEPS[event.key];
  if (event.key === "Escape") hush(plotOf(event.target));
  if (!link || !by || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const all = [...plotOf(link).querySelectorAll("a.target")];
  const next = all[Math.max(0, Math.min(all.length - 1, all.indexOf(link) + by))];
  link.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus({ preventScroll: true });
});
