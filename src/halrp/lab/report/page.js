"use strict";
// Draws the tables and figures of the page from the data in it. Texts are only ever set as text.
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const ROWS = 100; // so many rows of a table are shown before all are asked for
  const MANY = 15; // from so many drawings on, their names can be searched
  const SIGNS = { better: ["▲", "better"], equal: ["≈", "equal"], worse: ["▼", "worse"] };
  const LIGHT = { ink: "#1b2027", soft: "#59626e", line: "#dfe3e8", faint: "#eceff2", paper: "#ffffff", raised: "#f6f7f9" };
  const root = document.documentElement;

  const make = (tag, attributes = {}, ...inside) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value != null) element.setAttribute(name, value);
    }
    element.append(...inside.filter((one) => one != null));
    return element;
  };
  const words = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (text, wanted) => wanted.every((word) => text.includes(word));
  const flash = (button, text) => {
    button.dataset.label ||= button.textContent;
    button.textContent = text;
    setTimeout(() => { button.textContent = button.dataset.label; }, 1500);
  };

  // ---- light and dark ----------------------------------------------------------------------------------------------

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const probe = make("span", { class: "unseen", "aria-hidden": "true" });
  document.body.append(probe);
  const colours = () => Object.fromEntries(Object.keys(LIGHT).map((name) => {
    probe.style.color = `var(--${name})`;
    return [name, getComputedStyle(probe).color];
  }));
  const family = getComputedStyle(document.body).fontFamily;

  // ---- figures -----------------------------------------------------------------------------------------------------

  const CONFIG = { displayModeBar: false, displaylogo: false, responsive: true, doubleClick: "reset+autosize" };
  const SHAPES = {
    circle: "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z", square: "M-3.6,-3.6H3.6V3.6H-3.6Z", diamond: "M0,-5L5,0L0,5L-5,0Z",
    "triangle-up": "M0,-4.6L4.8,3.6H-4.8Z", "triangle-down": "M0,4.6L4.8,-3.6H-4.8Z",
    cross: "M-1.5,-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z",
    x: "M-4,-2.2L-2.2,-4L0,-1.8L2.2,-4L4,-2.2L1.8,0L4,2.2L2.2,4L0,1.8L-2.2,4L-4,2.2L-1.8,0Z",
    star: "M0,-5L1.2,-1.6L4.8,-1.5L1.9,0.6L3,4L0,2L-3,4L-1.9,0.6L-4.8,-1.5L-1.2,-1.6Z",
  };
  const DASHES = { dash: "5 3", dot: "2 2", dashdot: "6 2 2 2", longdashdot: "9 2 2 2" };
  const figures = [];

  const unescape = (text) => text.replace(/&(amp|lt|gt|#123|#36);/g, (_, name) => ({ amp: "&", lt: "<", gt: ">", "#123": "{", "#36": "$" })[name]);
  const escaped = (text) => text.replace(/[&<>{$]/g, (one) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", "{": "&#123;", $: "&#36;" })[one]);

  /** Names along an axis, cut to fit; turned where they would touch each other. */
  const ticksOf = (names, width, level) => {
    if (!names?.length) return { longest: 0, turned: false, own: {} };
    const narrow = width < 560;
    const most = narrow ? 15 : 28;
    const short = names.map(unescape).map((name) => (name.length > most ? `${name.slice(0, most - 1)}…` : name));
    const longest = Math.max(...short.map((name) => name.length));
    const turned = level && names.length * (longest * 7 + 14) > width - 90;
    const angle = turned ? (narrow ? -90 : -40) : 0;
    return { longest, turned, own: { tickvals: names, ticktext: short.map(escaped), tickangle: angle } };
  };
  const namesOf = (plot) => (plot.data[0]?.z ? plot.data[0].x : plot.layout.xaxis.categoryarray);
  const heightOf = (plot, width) => {
    const z = plot.data[0]?.z;
    const { longest, turned } = ticksOf(namesOf(plot), width, true);
    const below = turned ? (width < 560 ? 7 : 4.6) * longest : 0;
    if (z) return Math.min(900, Math.max(220, 100 + z.length * (width < 560 ? 22 : 28)) + below);
    return (width < 560 ? 310 : 400) + below;
  };

  /** Plotly's layout: that of the drawing, and the colours and sizes of the page. */
  const layoutOf = (plot, theme, width, more = {}) => {
    const axis = (own) => ({
      automargin: true, gridcolor: theme.faint, linecolor: theme.line, zerolinecolor: theme.line, tickcolor: theme.line,
      ticks: "outside", ticklen: 4, showline: true, exponentformat: "SI", fixedrange: coarse,
      ...own, title: { ...own.title, standoff: 12, font: { size: 12.5 } },
    });
    const coarse = matchMedia("(pointer: coarse)").matches; // a finger scrolls the page, and does not zoom
    return {
      ...plot.layout,
      xaxis: { ...axis(plot.layout.xaxis), ...ticksOf(namesOf(plot), width, true).own },
      yaxis: { ...axis(plot.layout.yaxis), ...ticksOf(plot.data[0]?.z && plot.data[0].y, width, false).own },
      autosize: true, height: heightOf(plot, width), margin: { l: 52, r: 12, t: 14, b: 48 },
      font: { family, size: 12, color: theme.ink }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      showlegend: false, hovermode: "closest", dragmode: coarse ? false : "zoom",
      hoverlabel: { bgcolor: theme.raised, bordercolor: theme.line, font: { color: theme.ink, family, size: 12 }, align: "left" },
      ...more,
    };
  };

  /** Plotly's traces: marks have a rim of the page's colour, and narrow fields no numbers. */
  const tracesOf = (plot, theme, width, hidden) => plot.data.map((trace, number) => {
    const own = { ...trace };
    if (trace.z) {
      if (width < 560 && trace.z[0]?.length > 6) delete own.texttemplate;
      own.colorbar = { ...trace.colorbar, tickfont: { color: theme.ink } };
    }
    if (trace.mode === "markers") own.marker = { ...trace.marker, line: { width: 1, color: trace.marker.symbol.endsWith("-open") ? trace.marker.color : theme.paper } };
    if (trace.type === "bar" && trace.marker.pattern) own.marker = { ...trace.marker, pattern: { ...trace.marker.pattern, bgcolor: theme.paper } };
    if (hidden?.has(number)) own.visible = "legendonly";
    return own;
  });

  const swatch = (trace) => {
    const svg = (name, attributes) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      return element;
    };
    const bar = trace.type === "bar";
    const picture = svg("svg", { width: bar ? 14 : 26, height: 14, viewBox: bar ? "-7 -7 14 14" : "-13 -7 26 14", "aria-hidden": "true" });
    const colour = Array.isArray(trace.marker.color) ? "var(--soft)" : trace.marker.color;
    if (trace.line) picture.append(svg("path", { d: "M-13,0H13", stroke: colour, "stroke-width": 2, "stroke-dasharray": DASHES[trace.line.dash] || "none" }));
    const open = bar ? Boolean(trace.marker.pattern) : trace.marker.symbol.endsWith("-open");
    const shape = bar ? "M-5.5,-5.5H5.5V5.5H-5.5Z" : SHAPES[trace.marker.symbol.replace("-open", "")];
    picture.append(svg("path", { d: shape, fill: open ? "var(--paper)" : colour, stroke: colour, "stroke-width": open ? 1.5 : 0 }));
    if (bar && open) picture.append(svg("path", { d: "M-5.5,5.5L5.5,-5.5M-5.5,0L0,-5.5M0,5.5L5.5,0", stroke: colour, "stroke-width": 1.3 }));
    return picture;
  };

  class Picture {
    constructor(article, part) {
      Object.assign(this, { part, chosen: 0, drawn: false, hidden: new Set(), key: article.dataset.key });
      this.tools = make("div", { class: "tools" });
      this.stage = make("div", { class: "stage waiting", role: "img", "aria-label": part.title });
      this.legend = make("ul", { class: "legend" });
      if (part.labels.length > 1) this.addChoice();
      this.tools.append(make("span", { class: "side" }, ...["svg", "png"].map((format) => make("button",
        { type: "button", class: "quiet", "data-save": format, onclick: () => this.save(format) }, `Save ${format.toUpperCase()}`))));
      this.stage.style.minHeight = `${heightOf(part.plots[0], innerWidth)}px`;
      article.append(this.tools, this.stage, this.legend);
      figures.push(this);
    }

    addChoice() {
      const labels = this.part.labels;
      const choose = make("select", { "aria-label": `Drawing of: ${this.part.title}`, onchange: () => this.choose(Number(choose.value)) });
      const fill = (wanted) => {
        const found = labels.flatMap((label, number) => (has(label.toLowerCase(), wanted) ? [number] : []));
        choose.replaceChildren(...found.map((number) => make("option", { value: number }, labels[number])));
        return found;
      };
      fill([]);
      this.tools.append(make("label", {}, "Show", choose));
      if (labels.length > MANY) {
        const count = make("span", { class: "count", role: "status" }, `${labels.length}`);
        const search = make("input", { type: "search", placeholder: "Search drawings", "aria-label": `Search drawings of: ${this.part.title}` });
        search.addEventListener("input", () => {
          const found = fill(words(search.value));
          count.textContent = search.value ? `${found.length} of ${labels.length}` : `${labels.length}`;
          if (found.includes(this.chosen)) choose.value = this.chosen;
          else if (found.length) this.choose(found[0]);
        });
        this.tools.append(search, count);
      }
    }

    get plot() { return this.part.plots[this.chosen]; }

    choose(number) {
      this.chosen = number;
      this.hidden.clear();
      this.draw();
    }

    draw(theme = colours(), width = null) {
      this.drawn = true;
      const wide = width ?? this.stage.clientWidth;
      this.stage.classList.remove("waiting");
      this.stage.style.minHeight = "";
      this.stage.setAttribute("aria-label", `${this.part.title}: ${this.part.labels[this.chosen]}`);
      Plotly.react(this.stage, tracesOf(this.plot, theme, wide, this.hidden), layoutOf(this.plot, theme, wide, width ? { width, autosize: false } : {}), CONFIG);
      this.drawLegend();
    }

    drawLegend() {
      const traces = this.plot.data;
      if (!traces.length || traces[0].z) return this.legend.replaceChildren();
      this.legend.replaceChildren(...traces.map((trace, number) => make("li", {}, make("button", {
        type: "button", "aria-pressed": String(!this.hidden.has(number)), title: "Click to hide or show; double-click to show it alone",
        onclick: (event) => {
          if (!this.hidden.delete(number)) this.hidden.add(number);
          if (event.detail === 2) { // what the first click of the two did has just been undone
            const alone = this.hidden.size === traces.length - 1 && !this.hidden.has(number);
            this.hidden = new Set(alone ? [] : traces.keys());
            this.hidden.delete(number);
          }
          for (const [place, button] of this.legend.querySelectorAll("button").entries()) button.setAttribute("aria-pressed", String(!this.hidden.has(place)));
          Plotly.restyle(this.stage, { visible: traces.map((_, place) => (this.hidden.has(place) ? "legendonly" : true)) });
        },
      }, swatch(trace), unescape(trace.name)))));
      return undefined;
    }

    save(format) {
      const label = this.part.labels[this.chosen];
      const title = { text: escaped(this.part.labels.length > 1 ? `${this.part.title}: ${label}` : this.part.title), font: { size: 14 }, x: 0.02, xanchor: "left" };
      const more = {
        title, paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff", autosize: false, width: 900, height: Math.max(480, heightOf(this.plot, 900)),
        margin: { l: 60, r: 20, t: 50, b: 60 }, showlegend: !this.plot.data[0]?.z,
      };
      const name = [this.key, ...(this.part.labels.length > 1 ? [label] : [])].join("-").toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 100);
      Plotly.downloadImage({ data: tracesOf(this.plot, LIGHT, 900, this.hidden), layout: layoutOf(this.plot, LIGHT, 900, more) },
        { format, filename: name, width: 900, height: more.height, scale: format === "png" ? 2 : 1 });
    }
  }

  // ---- tables ------------------------------------------------------------------------------------------------------

  const SPACE = "\u202f";
  const shown = (value, column) => {
    if (value === null) return "";
    if (typeof value !== "number") return String(value);
    let text = column.digits === null ? String(value) : value.toFixed(column.digits);
    if (/^-0(\.0*)?$/.test(text)) text = text.slice(1);
    const [whole, rest] = text.split(".");
    if (/^-?\d{5,}$/.test(whole)) text = whole.replace(/(?<=\d)(?=(\d{3})+$)/g, SPACE) + (rest ? `.${rest}` : "");
    if (column.signed && value > 0) text = `+${text}`;
    return text.replace("-", "−");
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));

  class Sheet {
    constructor(article, part) {
      this.columns = part.columns;
      this.numeric = part.columns.map((_, place) => {
        const values = part.rows.map((row) => row[place]).filter((value) => value !== null);
        return values.length > 0 && values.every((value) => typeof value === "number");
      });
      this.long = part.columns.map((column, place) => part.rows.some((row) => shown(row[place], column).length > 26));
      this.rows = part.rows.map((values, place) => {
        const texts = values.map((value, number) => shown(value, part.columns[number]));
        return { values, texts, mark: part.marks[place] || "", text: texts.join(" ").toLowerCase() };
      });
      Object.assign(this, { sorted: null, down: false, wanted: [], picks: new Map(), all: this.rows.length <= ROWS, marked: part.marks.some(Boolean) });
      this.heads = part.columns.map((column, place) => make("th", { scope: "col", class: this.numeric[place] ? "num" : null },
        make("button", { type: "button", title: column.about || null, onclick: () => this.sort(place) }, column.title.replace(/ (?=[%±])/g, "\u00a0"))));
      this.body = make("tbody");
      this.count = make("span", { role: "status" });
      this.more = make("button", { type: "button", class: "more", onclick: () => { this.all = true; this.fill(); } });
      const table = make("table", {}, make("thead", {}, make("tr", {}, ...this.heads)), this.body);
      article.append(this.tools(part), make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": part.title }, table),
        make("div", { class: "under" }, this.count, this.key(), this.more));
      const about = part.columns.filter((column) => column.about);
      if (about.length) {
        article.append(make("details", { class: "meaning" }, make("summary", {}, "What the columns mean"),
          make("dl", {}, ...about.flatMap((column) => [make("dt", {}, column.title), make("dd", {}, column.about)]))));
      }
      this.fill();
    }

    tools(part) {
      const bar = make("div", { class: "tools" });
      if (this.rows.length > 5) {
        bar.append(make("input", { type: "search", placeholder: "Search rows", "aria-label": `Search rows of: ${part.title}`,
          oninput: (event) => { this.wanted = words(event.target.value); this.fill(); } }));
      }
      for (const [place, column] of this.columns.entries()) {
        const values = [...new Set(this.rows.map((row) => row.values[place]))].sort(compare);
        if (!column.filters || values.length < 2) continue;
        bar.append(make("label", {}, column.title, make("select", { onchange: (event) => {
          const number = event.target.value;
          if (number === "") this.picks.delete(place);
          else this.picks.set(place, values[Number(number)]);
          this.fill();
        } }, make("option", { value: "" }, "all"), ...values.map((value, number) => make("option", { value: number }, shown(value, column) || "–")))));
      }
      bar.append(make("span", { class: "side" }, ...[["CSV", () => this.csv()], ["LaTeX", () => this.latex()]].map(([name, text]) => {
        const button = make("button", { type: "button", class: "quiet", "data-copy": name.toLowerCase(), onclick: () => copy(text(), button) }, `Copy ${name}`);
        return button;
      })));
      return bar;
    }

    key() {
      if (!this.marked) return null;
      const lines = Object.entries(SIGNS).map(([mark, [sign, text]]) => {
        const count = this.rows.filter((row) => row.mark === mark).length;
        return make("span", {}, make("span", { class: mark, "aria-hidden": "true" }, sign), ` ours is ${text}: ${count}`);
      });
      return make("span", { class: "key" }, ...lines);
    }

    sort(place) {
      if (this.sorted !== place) [this.sorted, this.down] = [place, false];
      else if (!this.down) this.down = true;
      else this.sorted = null;
      for (const [number, head] of this.heads.entries()) {
        if (number === this.sorted) head.setAttribute("aria-sort", this.down ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      }
      this.fill();
    }

    chosen() {
      const found = this.rows.filter((row) => has(row.text, this.wanted) && [...this.picks].every(([place, value]) => row.values[place] === value));
      if (this.sorted === null) return found;
      const [place, sign] = [this.sorted, this.down ? -1 : 1];
      return found.sort(({ values: a }, { values: b }) => {
        if (a[place] === null || b[place] === null) return (a[place] === null) - (b[place] === null);
        return sign * compare(a[place], b[place]);
      });
    }

    fill() {
      const found = this.chosen();
      const some = this.all ? found : found.slice(0, ROWS);
      this.body.replaceChildren(...some.map((row) => make("tr", { class: row.mark || null }, ...row.texts.map((text, place) => {
        const cell = make("td", { class: [this.numeric[place] && "num", this.long[place] && "long"].filter(Boolean).join(" ") || null }, text);
        if (place === 0 && this.marked) {
          const [sign, word] = SIGNS[row.mark] || ["", ""];
          cell.prepend(make("span", { class: "sign", "aria-hidden": "true" }, sign), make("span", { class: "unseen" }, word && `${word}: `));
        }
        return cell;
      }))));
      const total = this.rows.length.toLocaleString("en");
      this.count.textContent = found.length < this.rows.length ? `${found.length.toLocaleString("en")} of ${total} rows` : `${total} row${this.rows.length === 1 ? "" : "s"}`;
      this.more.textContent = `Show all ${found.length.toLocaleString("en")} rows`;
      this.more.hidden = some.length === found.length;
    }

    csv() {
      const quoted = (value) => { const text = value === null ? "" : String(value); return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text; };
      const mark = (value) => (this.marked ? [value] : []);
      const lines = [[...this.columns.map((column) => column.title), ...mark("ours is")], ...this.chosen().map((row) => [...row.values, ...mark(row.mark)])];
      return `${lines.map((line) => line.map(quoted).join(",")).join("\n")}\n`;
    }

    latex() {
      const special = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "−": "$-$", "±": "$\\pm$", "×": "$\\times$", "≈": "$\\approx$", "·": "$\\cdot$", "–": "--", [SPACE]: "\\," };
      const tex = (text) => text.replace(/[\\~^−±×≈·–\u202f]|[&%$#_{}]/g, (one) => special[one] || `\\${one}`);
      const line = (texts) => `${texts.map(tex).join(" & ")} \\\\`;
      return ["% needs \\usepackage{booktabs}", `\\begin{tabular}{${this.numeric.map((one) => (one ? "r" : "l")).join("")}}`, "\\toprule",
        line(this.columns.map((column) => column.title)), "\\midrule", ...this.chosen().map((row) => line(row.texts)), "\\bottomrule", "\\end{tabular}", ""].join("\n");
    }
  }

  const copy = async (text, button) => {
    try {
      await navigator.clipboard.writeText(text);
      flash(button, "Copied");
    } catch {
      const area = make("textarea", { class: "unseen" });
      area.value = text;
      document.body.append(area);
      area.select();
      flash(button, document.execCommand("copy") ? "Copied" : "Could not copy");
      area.remove();
    }
  };

  // ---- all together ------------------------------------------------------------------------------------------------

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      const found = figures.find((figure) => figure.stage === entry.target);
      if (!found.drawn) found.draw();
    }
  }, { rootMargin: "400px 0px" });
  for (const article of document.querySelectorAll("article.part")) {
    const part = DATA[article.dataset.section][Number(article.dataset.part)];
    if (part.plots) seen.observe(new Picture(article, part).stage);
    else new Sheet(article, part);
  }

  const redraw = () => { for (const figure of figures) if (figure.drawn) figure.draw(); };
  dark.addEventListener("change", redraw);
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    redraw();
  });
  addEventListener("beforeprint", () => { for (const figure of figures) figure.draw(LIGHT, 900); });
  addEventListener("afterprint", redraw);
  if (innerWidth < 1152) document.querySelector("nav details").removeAttribute("open");
})();
