"use strict";
// Sorts and filters the verdicts, copies commands, and draws figures when they come near the screen. Without it the page
// shows everything, in the papers' order.
(() => {
  const byId = (id) => document.getElementById(id);
  const table = byId("verdict-table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const form = byId("filters");
  const [text, paper, verdict] = ["filter-text", "filter-paper", "filter-verdict"].map(byId);
  const count = byId("count");

  const say = (sentence) => { byId("said").textContent = sentence; };

  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const fits = words.every((word) => row.dataset.text.includes(word))
        && (!paper.value || row.dataset.paper === paper.value)
        && (!verdict.value || row.dataset.verdict === verdict.value);
      row.hidden = !fits;
      byId(row.dataset.claim).hidden = !fits;
      shown += fits;
    }
    for (const part of document.querySelectorAll("section.paper")) {
      part.hidden = !part.querySelector("article:not([hidden])");
    }
    count.textContent = `${shown === rows.length ? "All" : `${shown} of`} ${rows.length} claims are shown.`;
  };

  const order = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    if (a !== "" && b !== "" && !Number.isNaN(x) && !Number.isNaN(y)) return x - y;
    return a === "" || b === "" ? (a === "") - (b === "") : a.localeCompare(b);
  };

  const sort = (column) => {
    const direction = heads[column].getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[column].setAttribute("aria-sort", direction);
    const sign = direction === "ascending" ? 1 : -1;
    const key = (row) => row.cells[column].dataset.key;
    body.append(...[...rows].sort((a, b) => sign * order(key(a), key(b))));
    say(`Sorted by ${heads[column].textContent.toLowerCase()}, ${direction}.`);
  };

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(column));
    head.replaceChildren(button);
  });

  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => {
    for (const head of heads) head.removeAttribute("aria-sort");
    body.append(...rows);
    filter();
  }));

  // following a link to a claim that the filter hides resets the filter
  const reveal = () => {
    const target = location.hash && byId(decodeURIComponent(location.hash.slice(1)));
    if (target && target.closest("[hidden]")) {
      form.reset();
      setTimeout(() => target.scrollIntoView());
    }
  };
  addEventListener("hashchange", reveal);

  // Figures are stored as text inside <noscript>: hundreds of them as elements would slow down the browser.
  const draw = (plot) => {
    const waiting = plot.querySelector("noscript");
    if (!waiting) return;
    plot.innerHTML = waiting.textContent;
    plot.style.aspectRatio = plot.style.maxWidth = "";
  };
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      near.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "1500px" });
  const plots = [...document.querySelectorAll(".plot[data-ratio]")];
  for (const plot of plots) {
    plot.style.aspectRatio = plot.dataset.ratio;
    plot.style.maxWidth = plot.dataset.width;
    near.observe(plot);
  }
  addEventListener("beforeprint", () => plots.forEach(draw));

  const copy = async (code) => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      return true;
    } catch {
      getSelection().selectAllChildren(code);
      return document.execCommand("copy");
    }
  };
  for (const code of document.querySelectorAll("code.command")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", `Copy the command ${code.textContent}`);
    button.addEventListener("click", async () => {
      const done = await copy(code);
      button.textContent = done ? "Copied" : "Select and copy by hand";
      say(done ? `Copied: ${code.textContent}` : "The browser does not allow copying.");
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    code.after(button);
  }
})();
