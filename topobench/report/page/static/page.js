"use strict";
(function () {
  const root = document.documentElement;
  const drawn = [];

  function css(name) {
    return getComputedStyle(root).getPropertyValue(name).trim();
  }

  function themed(axis, extra) {
    return Object.assign(
      { gridcolor: css("--grid"), linecolor: css("--line"), zerolinecolor: css("--faint"), automargin: true },
      axis || {}, extra || {});
  }

  function layoutOf(spec, width) {
    const layout = Object.assign({
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 62, r: 16, t: 18, b: 46 }, showlegend: false, hovermode: "closest",
      barcornerradius: 3
    }, spec.layout);
    const most = layout.maxwidth;
    const columns = layout.columns;
    delete layout.maxwidth;
    delete layout.columns;
    if (layout.xaxis && layout.xaxis.side === "top") layout.margin = { l: 70, r: 16, t: 46, b: 14 };
    layout.font = { family: "system-ui, sans-serif", size: 12, color: css("--ink") };
    layout.xaxis = themed(layout.xaxis);
    if (layout.xaxis.title) layout.xaxis.title.standoff = 10;
    layout.yaxis = themed(layout.yaxis);
    layout.width = most ? Math.min(most, width) : width;
    if (columns && (layout.width - 90) / columns < 58) {
      layout.xaxis.tickangle = -50;
      layout.margin.t = 66;
      layout.height += 20;
    }
    return layout;
  }

  function leastWidth(layout) {
    if (layout.columns) return 90 + 36 * layout.columns;
    const axis = layout.yaxis || {};
    return axis.type === "category" || axis.ticktext ? 640 : 0;
  }

  const config = { displayModeBar: false, responsive: false, scrollZoom: false };

  function swatch(trace) {
    const shade = (trace.line && trace.line.color) || (trace.marker && trace.marker.color) || "#888";
    const dash = { dot: "2 3", dash: "6 3", dashdot: "6 3 2 3" }[trace.line && trace.line.dash] || "";
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("width", "22");
    svg.setAttribute("height", "10");
    svg.setAttribute("aria-hidden", "true");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [key, value] of [["x1", 1], ["x2", 21], ["y1", 5], ["y2", 5], ["stroke", shade],
      ["stroke-width", trace.type === "bar" ? 9 : 3], ["stroke-dasharray", dash]]) {
      line.setAttribute(key, value);
    }
    svg.append(line);
    return svg;
  }

  function legend(plot, data, names) {
    const named = data.map((trace, index) => [trace, index])
      .filter(([trace, index]) => names[index] && trace.showlegend !== false);
    if (named.length < 2) return;
    const list = document.createElement("ul");
    list.className = "legend";
    for (const [trace, index] of named) {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.append(swatch(trace), document.createTextNode(names[index]));
      button.addEventListener("click", function () {
        const shown = button.getAttribute("aria-pressed") === "true";
        button.setAttribute("aria-pressed", String(!shown));
        Plotly.restyle(plot, { visible: !shown }, [index]);
      });
      const item = document.createElement("li");
      item.append(button);
      list.append(item);
    }
    plot.after(list);
  }

  function draw(figure) {
    const plot = figure.querySelector(".plot");
    const spec = JSON.parse(figure.querySelector("script.spec").textContent);
    plot.style.minWidth = leastWidth(spec.layout) + "px";
    Plotly.newPlot(plot, spec.data, layoutOf(spec, plot.clientWidth), config);
    legend(plot, spec.data, spec.names);
    drawn.push([plot, spec]);
  }

  function again(width) {
    for (const [plot, spec] of drawn) {
      Plotly.relayout(plot, layoutOf(spec, width || plot.clientWidth));
    }
  }

  function filter(input) {
    const wanted = input.value.trim().toLowerCase();
    let hits = 0;
    for (const row of document.querySelectorAll("main tbody tr")) {
      const fits = !wanted || row.textContent.toLowerCase().includes(wanted);
      row.hidden = !fits;
      if (!fits || !wanted) continue;
      hits += 1;
      const box = row.closest("details");
      if (box && !box.open) { box.open = true; box.dataset.opened = "1"; }
    }
    if (!wanted) {
      for (const box of document.querySelectorAll("details[data-opened]")) {
        box.open = false;
        delete box.dataset.opened;
      }
    }
    const status = document.getElementById("hits");
    if (status) status.textContent = wanted ? hits + (hits === 1 ? " row" : " rows") : "";
  }

  const factors = { ns: 1e-9, us: 1e-6, ms: 1e-3, KiB: 1024, MiB: 1048576, GiB: 1073741824 };

  function valueOf(cell) {
    const text = cell ? cell.textContent.trim() : "";
    const found = /^([+-]?\d[\d.]*(?:e[+-]?\d+)?)\s*([A-Za-z]*)/.exec(text);
    return found ? [parseFloat(found[1]) * (factors[found[2]] || 1), text] : [null, text];
  }

  function sort(button) {
    const head = button.closest("th");
    const down = head.getAttribute("aria-sort") === "ascending";
    const place = Array.from(head.parentNode.children).indexOf(head);
    const body = head.closest("table").tBodies[0];
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = Array.from(body.rows).map((row) => [valueOf(row.cells[place]), row]);
    rows.sort(function ([a], [b]) {
      if (a[0] !== null && b[0] !== null) return a[0] - b[0];
      if (a[0] !== null || b[0] !== null) return a[0] === null ? 1 : -1;
      return a[1].localeCompare(b[1]);
    });
    if (down) rows.reverse();
    body.append(...rows.map(([, row]) => row));
  }

  function progress(box) {
    const bar = box.querySelector(".progress span");
    const words = box.querySelector("[data-words]");
    const timer = setInterval(async function () {
      let found;
      try {
        const answer = await fetch(box.dataset.url, { headers: { Accept: "application/json" } });
        if (answer.status === 401 || answer.status === 404) location.reload();
        if (!answer.ok) return;
        found = await answer.json();
      } catch (error) {
        return;
      }
      if (bar) bar.style.width = (100 * found.share).toFixed(1) + "%";
      if (found.words !== words.textContent) words.textContent = found.words;
      if (found.status !== "running") {
        clearInterval(timer);
        location.reload();
      }
    }, Number(box.dataset.every));
  }

  function start() {
    for (const button of document.querySelectorAll("th button")) {
      button.addEventListener("click", () => sort(button));
    }
    const input = document.getElementById("filter");
    if (input) input.addEventListener("input", () => filter(input));
    for (const box of document.querySelectorAll("[data-progress]")) progress(box);
    const figures = document.querySelectorAll("figure.chart");
    if (figures.length && typeof Plotly === "undefined") return;
    for (const figure of figures) draw(figure);
    root.dataset.drawn = String(drawn.length);
    let waiting;
    addEventListener("resize", function () {
      clearTimeout(waiting);
      waiting = setTimeout(() => again(), 150);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => again());
    const short = Array.from(document.querySelectorAll("details[data-short]"));
    addEventListener("beforeprint", function () {
      for (const box of short) if (!box.open) { box.open = true; box.dataset.printed = "1"; }
      again(660);
    });
    addEventListener("afterprint", function () {
      for (const box of short) if (box.dataset.printed) { box.open = false; delete box.dataset.printed; }
      again();
    });
    matchMedia("print").addEventListener("change", (event) => again(event.matches ? 660 : 0));
  }

  if (document.readyState === "loading") addEventListener("DOMContentLoaded", start);
  else start();
})();
