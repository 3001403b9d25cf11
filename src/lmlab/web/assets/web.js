// Comfort only: everything works without it. Links marked data-swap exchange the page in place, so that the
// place where one looked is kept; commands are copied by a click; Ctrl-Enter sends the SQL.
"use strict";
const swap = async (url, push) => {
  const answer = await fetch(url, { headers: { Accept: "text/html" } });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const before = document.querySelector(".graph > .scroll");
  const place = before && [before.scrollLeft, before.scrollTop];
  document.querySelector("main").replaceWith(page.querySelector("main"));
  const after = document.querySelector(".graph > .scroll");
  if (place && after) [after.scrollLeft, after.scrollTop] = place;
  if (push) history.pushState(null, "", url);
  document.querySelector(".node.shown")?.focus({ preventScroll: true });
};
const graph = document.querySelector(".graph > .scroll"), focus = document.querySelector(".node.focus rect");
if (focus) graph.scrollLeft += focus.getBoundingClientRect().x - graph.getBoundingClientRect().x - graph.clientWidth / 2 + 106;
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-swap]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
    event.preventDefault();
    const url = new URL(link.getAttribute("href"), location.href);
    swap(url, true).catch(() => location.assign(url));
  }
  const command = event.target.closest("code.copy");
  if (command) navigator.clipboard?.writeText(command.textContent).then(() => command.classList.add("copied"));
});
addEventListener("popstate", () => swap(location.href, false).catch(() => location.reload()));
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.target.closest("form.editor")?.requestSubmit();
});
