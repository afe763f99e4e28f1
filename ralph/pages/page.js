"use strict";
// The page works without this script, which adds the search, the cursor on the timeline and the width of the timeline.
// It reads only text and numbers from the page, and makes no markup of them.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);

  function unfoldAbove(node) {
    for (let at = node; at; at = at.parentElement) {
      if (at.tagName === "DETAILS") at.open = true;
    }
  }

  // Links into folded parts, from the address or from a click.
  function goTo(id) {
    const there = id && byId(id);
    if (!there) return;
    unfoldAbove(there);
    there.scrollIntoView({ block: "center" });
    const summary = there.querySelector(":scope > summary");
    if (summary) summary.focus({ preventScroll: true });
  }
  const idIn = (hash) => {
    try { return decodeURIComponent(hash.slice(1)); } catch { return hash.slice(1); }
  };
  addEventListener("hashchange", () => goTo(idIn(location.hash)));
  if (location.hash) goTo(idIn(location.hash));

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    const hash = link.getAttribute("href") || "";
    if (link.dataset.x !== undefined) showMoment(byId(idIn(hash)), Number(link.dataset.x));
    if (hash === location.hash) goTo(idIn(hash));
  });

  // A line on the timeline, at a moment of the transcript.
  function showMoment(figure, x) {
    const lanes = figure && figure.querySelector(".lanes");
    if (!lanes || !Number.isFinite(x)) return;
    let line = lanes.querySelector(".cursor");
    if (!line) {
      line = document.createElementNS("http://www.w3.org/2000/svg", "line");
      line.setAttribute("class", "cursor");
      line.setAttribute("y1", "0");
      line.setAttribute("y2", String(lanes.getAttribute("height") - 14));
      lanes.append(line);
    }
    line.setAttribute("x1", x + "%");
    line.setAttribute("x2", x + "%");
    const scroll = lanes.parentElement;
    scroll.scrollLeft = (scroll.scrollWidth * x) / 100 - scroll.clientWidth / 2;
  }

  // The width of a timeline, from that of the page to 32 times as much.
  for (const row of all(".zoom")) {
    const lanes = row.closest("section").querySelector(".lanes");
    let times = 1;
    row.hidden = false;
    row.addEventListener("click", (event) => {
      const factor = Number(event.target.dataset.zoom);
      if (!factor) return;
      const scroll = lanes.parentElement;
      const middle = (scroll.scrollLeft + scroll.clientWidth / 2) / scroll.scrollWidth;
      times = Math.min(32, Math.max(1, times * factor));
      lanes.style.width = times * 100 + "%";
      scroll.scrollLeft = middle * scroll.scrollWidth - scroll.clientWidth / 2;
    });
  }

  const main = document.querySelector("main");
  const folds = () => all("details", main);
  byId("unfold").addEventListener("click", () => folds().forEach((one) => { one.open = true; }));
  byId("fold").addEventListener("click", () => folds().forEach((one) => { one.open = false; }));

  // The search looks at every text of the page, folded or not.
  const most = 5000;
  const field = byId("find");
  const told = byId("found");
  let hits = [];
  let here = -1;
  let sought = "";

  function search() {
    const words = field.value.toLowerCase();
    if (words === sought) return;
    sought = words;
    hits = [];
    here = -1;
    if (words) {
      const walker = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
      for (let node = walker.nextNode(); node && hits.length < most; node = walker.nextNode()) {
        if (node.parentElement.closest("svg")) continue;
        const text = node.data.toLowerCase();
        for (let at = text.indexOf(words); at >= 0 && hits.length < most; at = text.indexOf(words, at + words.length)) {
          hits.push([node, at]);
        }
      }
    }
    tell();
    paint();
  }

  function rangeOf([node, at]) {
    const range = new Range();
    range.setStart(node, Math.min(at, node.length));
    range.setEnd(node, Math.min(at + sought.length, node.length));
    return range;
  }

  function paint() {
    if (!CSS.highlights) return;
    CSS.highlights.clear();
    if (!hits.length) return;
    CSS.highlights.set("found", new Highlight(...hits.slice(0, 1000).map(rangeOf)));
    if (here >= 0) {
      const one = new Highlight(rangeOf(hits[here]));
      one.priority = 1;
      CSS.highlights.set("here", one);
    }
  }

  function tell() {
    const number = hits.length + (hits.length >= most ? "+" : "");
    told.textContent = !sought ? "" : !hits.length ? "not found" : here < 0 ? number + " found" : here + 1 + " of " + number;
  }

  function step(by) {
    search();
    if (!hits.length) return;
    here = here < 0 ? (by > 0 ? 0 : hits.length - 1) : (here + by + hits.length) % hits.length;
    const node = hits[here][0].parentElement;
    unfoldAbove(node);
    node.scrollIntoView({ block: "center" });
    tell();
    paint();
  }

  let soon = 0;
  field.addEventListener("input", () => { clearTimeout(soon); soon = setTimeout(search, 150); });
  byId("search").addEventListener("submit", (event) => { event.preventDefault(); step(1); });
  byId("previous").addEventListener("click", () => step(-1));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.shiftKey) { event.preventDefault(); step(-1); }
    if (event.key === "Escape") { field.value = ""; search(); }
  });
  byId("tools").hidden = false;
})();
