"use strict";
// Draws the tables and figures of the page from the data in it. Texts are only ever set as text.
(async () => {
  const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (letter) => letter.charCodeAt(0));
  const DATA = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  const ROWS = 100; // rows of a table that are shown before all are asked for
  const MANY = 15; // plots from which on their names can be searched
  const SIGNS = { better: ["▲", "better"], equal: ["≈", "equal"], worse: ["▼", "worse"] };
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

  // ---- figures -----------------------------------------------------------------------------------------------------

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const ZOOM = { name: "zoom", bind: "scales", select: { type: "interval", zoom: "wheel![event.ctrlKey || event.metaKey]" } };
  const figures = [];

  /** Vega-Lite's specification of a plot for a width; a finger scrolls the page and does not move the plot. */
  const sized = (spec, width, more = {}) => ({
    height: width < 560 ? 250 : 330, ...spec, width, params: [{ name: "space", value: width }],
    autosize: { type: "fit-x", contains: "padding" }, ...more,
  });
  /** The ast option has expressions interpreted: the page forbids to run text as a program. */
  const embed = (element, spec, config) => vegaEmbed(element, spec, {
    mode: "vega-lite", ast: true, actions: false, renderer: "svg", defaultStyle: false, config, tooltip: { theme: isDark() ? "dark" : "light" },
  });

  const withoutLegends = (layers) => JSON.parse(JSON.stringify(layers), (key, value) => (key === "legend" ? null : value));

  const swatch = (entry) => {
    const svg = (name, attributes) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      return element;
    };
    const half = entry.line ? 13 : 7;
    const picture = svg("svg", { width: 2 * half, height: 14, viewBox: `${-half} -7 ${2 * half} 14`, "aria-hidden": "true" });
    if (entry.line) picture.append(svg("path", { d: "M-13,0H13", stroke: entry.stroke, "stroke-width": 2, "stroke-dasharray": entry.strokeDash.join(" ") }));
    picture.append(svg("path", { d: entry.shape, transform: "scale(4.4)", fill: entry.fill, stroke: entry.stroke, "stroke-width": 0.3 }));
    return picture;
  };

  class Picture {
    constructor(article, part) {
      Object.assign(this, { part, chosen: 0, drawn: false, hidden: new Set(), key: article.dataset.key, turn: 0 });
      this.tools = make("div", { class: "tools" });
      this.stage = make("div", { class: "stage waiting", role: "img", "aria-label": part.title });
      this.legend = make("ul", { class: "legend" });
      if (part.labels.length > 1) this.addChoice();
      this.tools.append(make("span", { class: "side" }, ...["svg", "png"].map((format) => make("button",
        { type: "button", class: "quiet", "data-save": format, onclick: () => this.save(format) }, `Save ${format.toUpperCase()}`))));
      article.append(this.tools, this.stage, this.legend);
      figures.push(this);
    }

    addChoice() {
      const labels = this.part.labels;
      const choose = make("select", { "aria-label": `Plot of: ${this.part.title}`, onchange: () => this.choose(Number(choose.value)) });
      const fill = (wanted) => {
        const matches = labels.flatMap((label, number) => (has(label.toLowerCase(), wanted) ? [number] : []));
        choose.replaceChildren(...matches.map((number) => make("option", { value: number }, labels[number])));
        return matches;
      };
      fill([]);
      this.tools.append(make("label", {}, "Show", choose));
      if (labels.length > MANY) {
        const count = make("span", { class: "count", role: "status" }, `${labels.length}`);
        const search = make("input", { type: "search", placeholder: "Search plots", "aria-label": `Search plots of: ${this.part.title}` });
        search.addEventListener("input", () => {
          const matches = fill(words(search.value));
          count.textContent = search.value ? `${matches.length} of ${labels.length}` : `${labels.length}`;
          if (matches.includes(this.chosen)) choose.value = this.chosen;
          else if (matches.length) this.choose(matches[0]);
        });
        this.tools.append(search, count);
      }
    }

    get spec() { return this.part.plots[this.chosen]; }

    get rows() { return this.spec.data.values.filter((row) => !this.hidden.has(row.series)); }

    choose(number) {
      this.chosen = number;
      this.hidden.clear();
      this.draw();
    }

    async draw(width = this.stage.clientWidth) {
      const turn = ++this.turn; // the last call wins
      Object.assign(this, { drawn: true, width });
      const spec = sized(this.spec, width, { data: { name: "rows", values: this.rows } });
      if (spec.usermeta.legend.length) spec.layer = withoutLegends(spec.layer);
      if (spec.usermeta.zoom && matchMedia("(pointer: fine)").matches) spec.layer[0].params = [ZOOM];
      const picture = make("div");
      const result = await embed(picture, spec, DATA.theme);
      if (turn !== this.turn) { result.finalize(); return; }
      this.result?.finalize();
      this.result = result;
      this.stage.classList.remove("waiting");
      this.stage.setAttribute("aria-label", `${this.part.title}: ${this.part.labels[this.chosen]}`);
      this.stage.replaceChildren(picture);
      this.drawLegend();
    }

    drawLegend() {
      const entries = this.spec.usermeta.legend;
      const buttons = entries.map((entry) => make("button", {
        type: "button", title: "Click to hide or show; double-click to show it alone", onclick: (event) => {
          const { name } = entry;
          if (!this.hidden.delete(name)) this.hidden.add(name);
          if (event.detail === 2) { // what the first click of the two did has just been undone
            const alone = this.hidden.size === entries.length - 1 && !this.hidden.has(name);
            this.hidden = new Set(alone ? [] : entries.map((other) => other.name));
            this.hidden.delete(name);
          }
          mark();
          this.result.view.data("rows", structuredClone(this.rows)).run();
        },
      }, swatch(entry), entry.name));
      const mark = () => buttons.forEach((button, number) => button.setAttribute("aria-pressed", String(!this.hidden.has(entries[number].name))));
      mark();
      this.legend.replaceChildren(...buttons.map((button) => make("li", {}, button)));
    }

    async save(format) {
      const label = this.part.labels[this.chosen];
      const several = this.part.labels.length > 1;
      const title = { text: several ? `${this.part.title}: ${label}` : this.part.title };
      const name = [this.key, ...(several ? [label] : [])].join("-").toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 100);
      const { view, finalize } = await embed(make("div"), sized(this.spec, 900, { title, padding: 12, data: { name: "rows", values: this.rows } }), DATA.light);
      const address = format === "svg"
        ? URL.createObjectURL(new Blob([await view.toSVG()], { type: "image/svg+xml" }))
        : (await view.toCanvas(2)).toDataURL("image/png");
      make("a", { href: address, download: `${name}.${format}` }).click();
      finalize();
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
      // A spreadsheet takes text that begins like a formula for one; an apostrophe shows it as text.
      const formula = (value) => typeof value === "string" && /^\s*[=+\-@＝＋－＠]/.test(value) && !/^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(value);
      const plain = (value) => `${formula(value) ? "'" : ""}${value}`.replace(/[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
      const quoted = (value) => { const text = value === null ? "" : plain(value); return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text; };
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

  const figureOf = (stage) => figures.find((figure) => figure.stage === stage);
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      if (!figureOf(target).drawn) figureOf(target).draw();
    }
  }, { rootMargin: "400px 0px" });
  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const figure = figureOf(target);
      if (figure.drawn && target.clientWidth !== figure.width) figure.draw();
    }
  });
  for (const article of document.querySelectorAll("article.part")) {
    const part = DATA.parts[article.dataset.section][Number(article.dataset.part)];
    if (part.plots) {
      const { stage } = new Picture(article, part);
      seen.observe(stage);
      resized.observe(stage);
    } else new Sheet(article, part);
  }

  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
  });
  // Drawing ends before the browser prints: it waits for nothing but promises that are already kept.
  addEventListener("beforeprint", () => { for (const figure of figures) figure.draw(900); });
  addEventListener("afterprint", () => { for (const figure of figures) figure.draw(); });
  if (innerWidth < 1152) document.querySelector("nav details").removeAttribute("open");
  root.dataset.ready = "";
})();
