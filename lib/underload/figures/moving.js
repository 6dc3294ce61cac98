// Looks frames up and draws them: every value was computed by the library. plot.py draws the same elements.
(function () {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";
  const px = (v) => String(Math.floor(v * 10 + 0.5) / 10 + 0);
  const ink = (name) => `var(--ul-${name})`;
  const num = (v) => typeof v === "number";

  function el(tag, values, children) {
    const node = document.createElementNS(NS, tag);
    for (const key in values) if (values[key] !== null && values[key] !== undefined) node.setAttribute(key, values[key]);
    if (typeof children === "string") node.textContent = children;
    else if (children) children.forEach((child) => node.appendChild(child));
    return node;
  }

  function canvas(scales, size) {
    const [xl, xh, xlog, xdown, yl, yh, ylog, ydown] = scales;
    const share = (v, lo, hi, log, down) => {
      const s = log ? (Math.log(v) - Math.log(lo)) / (Math.log(hi) - Math.log(lo)) : (v - lo) / (hi - lo);
      return down ? 1 - s : s;
    };
    return {
      w: size[0], h: size[1], lims: { x: [xl, xh], y: [yl, yh] },
      ok: { x: (v) => num(v) && (!xlog || v > 0), y: (v) => num(v) && (!ylog || v > 0) },
      x: (v) => share(v, xl, xh, xlog, xdown) * size[0],
      y: (v) => (1 - share(v, yl, yh, ylog, ydown)) * size[1],
    };
  }

  function runs(c, xs, ys) {
    const all = [[]];
    xs.forEach((x, i) => {
      if (c.ok.x(x) && c.ok.y(ys[i])) all[all.length - 1].push([c.x(x), c.y(ys[i])]);
      else if (all[all.length - 1].length) all.push([]);
    });
    return all.filter((run) => run.length);
  }
  const path = (run, step) =>
    run.map(([x, y], i) => (i === 0 ? `M${px(x)} ${px(y)}` : step ? `H${px(x)}V${px(y)}` : `L${px(x)} ${px(y)}`)).join("");

  const draw = {
    curve(c, it) {
      const parts = [], colour = ink(it.look);
      if (it.low && it.high) {
        const whole = it.low.map((l, i) => num(l) && num(it.high[i]));
        const up = runs(c, it.x, it.high.map((v, i) => (whole[i] ? v : null)));
        const down = runs(c, it.x, it.low.map((v, i) => (whole[i] ? v : null)));
        if (up.map((r) => r.length).join() === down.map((r) => r.length).join())
          up.forEach((u, i) => {
            const d = path(u, false) + "L" + path(down[i].slice().reverse(), false).slice(1) + "Z";
            parts.push(el("path", { class: "ul-band", d: d, fill: colour }));
          });
      }
      const all = runs(c, it.x, it.y);
      if (it.area)
        all.forEach((r) => parts.push(el("path", { class: "ul-area", d: path(r, it.step) + `V${px(c.h)}H${px(r[0][0])}Z`, fill: colour })));
      if (it.line)
        parts.push(el("path", { class: it.thin ? "ul-thin" : "ul-curve", d: all.map((r) => path(r, it.step)).join(""), stroke: colour, "stroke-dasharray": it.dash || null }));
      if (it.marker)
        all.forEach((r) => r.forEach(([x, y]) => parts.push(el("path", {
          class: "ul-dot", d: it.marker, transform: `translate(${px(x)} ${px(y)})`,
          fill: it.hollow ? ink("surface") : colour, stroke: it.hollow ? colour : ink("surface"),
        }))));
      return parts;
    },
    bar(c, it) {
      if (!it.x.every(c.ok.x) || !it.y.every(c.ok.y)) return [];
      const [l, r] = it.x.map(c.x).sort((a, b) => a - b), [u, d] = it.y.map(c.y).sort((a, b) => a - b);
      const parts = [el("rect", { class: it.faint ? "ul-faint" : "ul-bar", x: px(l), y: px(u), width: px(r - l), height: px(d - u), fill: ink(it.look), stroke: it.faint ? ink(it.look) : null })];
      if (it.label && r - l > 0.56 * 12.5 * [...it.label].length + 4 && d - u >= 13)
        parts.push(el("text", { class: "ul-in", x: px((l + r) / 2), y: px((u + d) / 2 + 4.5), "text-anchor": "middle" }, it.label));
      return parts;
    },
    band(c, it) {
      const ax = it.x ? "x" : "y", ends = it[ax].map((v, i) => (c.ok[ax](v) ? v : c.lims[ax][i]));
      const [a, b] = ends.map((v) => Math.min(Math.max(c[ax](v), -1), (ax === "x" ? c.w : c.h) + 1)).sort((p, q) => p - q);
      const [x, y, w, h] = ax === "x" ? [a, 0, b - a, c.h] : [0, a, c.w, b - a];
      const parts = [el("rect", { class: "ul-region", x: px(x), y: px(y), width: px(w), height: px(h), fill: ink(it.look) })];
      const late = x + w / 2 > c.w / 2;
      if (it.label && b - a > 1)
        parts.push(el("text", { class: "ul-note", x: px(late ? x + w - 5 : x + 5), y: px(y + 15), "text-anchor": late ? "end" : "start", fill: ink(it.look) }, it.label));
      return parts;
    },
    rule(c, it) {
      const ax = num(it.x) ? "x" : "y", v = it[ax], [lo, hi] = c.lims[ax];
      if (!c.ok[ax](v) || v < lo || v > hi) return [];
      const at = c[ax](v), ends = ax === "x" ? { x1: px(at), x2: px(at), y1: "0", y2: px(c.h) } : { x1: "0", x2: px(c.w), y1: px(at), y2: px(at) };
      const parts = [el("line", { class: "ul-rule", ...ends, stroke: ink(it.look) })];
      if (it.label && ax === "x") {
        const late = at > c.w / 2;
        parts.push(el("text", { class: "ul-note", x: px(late ? at - 5 : at + 5), y: "13", "text-anchor": late ? "end" : "start", fill: ink(it.look) }, it.label));
      } else if (it.label)
        parts.push(el("text", { class: "ul-note", x: "5", y: px(at > 18 ? at - 5 : at + 15), "text-anchor": "start", fill: ink(it.look) }, it.label));
      return parts;
    },
    mark(c, it) {
      if (!c.ok.x(it.x) || !c.ok.y(it.y)) return [];
      const x = Math.min(Math.max(c.x(it.x), 0), c.w), y = Math.min(Math.max(c.y(it.y), 0), c.h), parts = [];
      if (it.guides) parts.push(el("path", { class: "ul-guide", d: `M0 ${px(y)}H${px(x)}V${px(c.h)}` }));
      parts.push(el("path", { class: "ul-mark", d: it.marker, transform: `translate(${px(x)} ${px(y)})`, fill: it.hollow ? "none" : ink(it.look), stroke: ink(it.look) }));
      if (it.label) {
        const late = x > c.w / 2;
        let at = it.under ? y + 20 : y - 11;
        if (at < 12) at = y + 20;
        if (at > c.h - 3) at = y - 11;
        parts.push(el("text", { class: "ul-label", x: px(late ? x - 6 : x + 6), y: px(at), "text-anchor": late ? "end" : "start", fill: ink(it.look) }, it.label));
      }
      return parts;
    },
  };

  function start(root) {
    root.setAttribute("data-ul-live", "");
    const data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
    const $ = (css) => root.querySelector(css), $$ = (css) => Array.from(root.querySelectorAll(css));
    const form = $(".ul-controls"), guess = $(".ul-guess"), reply = $(".ul-reply"), status = $('[role="status"]');
    const inputs = data.counts.map((_, i) => $$(`.ul-controls [name="${i}"]`));
    const settings = $$(".ul-setting b"), tiles = $$(".ul-number"), says = $(".ul-says");
    let pinned = [], extra = [], waiting = false, timer = 0;

    const at = () => inputs.map((group) => (group[0].type === "range" ? +group[0].value : group.findIndex((r) => r.checked)));
    const frame = (indices) => data.frames[indices.reduce((n, index, i) => n * data.counts[i] + index, 0)];

    function paint() {
      const here = at(), now = frame(here);
      inputs.forEach((group, i) => {
        const words = data.said[i][here[i]];
        settings[i].textContent = words;
        if (group[0].type !== "range") return;
        group[0].setAttribute("aria-valuetext", words);
        group[0].closest("label").querySelector(".ul-value").textContent = words;
      });
      const items = now.i.map((n) => data.pool[n]).concat(pinned, extra);
      $$("svg[data-panel]").forEach((svg) => {
        const panel = +svg.dataset.panel, size = data.layouts[panel][svg.classList.contains("ul-narrow") ? 1 : 0];
        const c = canvas(data.panels[panel], size), [below, above] = svg.querySelectorAll(".ul-items");
        const made = (kinds) => items.filter((it) => it.panel === panel && (it.kind === "mark") === kinds).map((it) => el("g", {}, draw[it.kind](c, it)));
        below.replaceChildren(...made(false));
        above.replaceChildren(...made(true));
      });
      if (waiting) return;
      tiles.forEach((tile, i) => {
        const [, value, unit] = now.n[i].match(/^([−∞\d][^ ]*) (.+)$/) || [null, now.n[i], ""];
        tile.querySelector("b").textContent = value;
        tile.querySelector("small").textContent = unit ? ` ${unit}` : "";
      });
      says.textContent = now.s;
      table(now);
      clearTimeout(timer);
      timer = setTimeout(() => (status.textContent = sentence(here, now)), 250); // once the control rests
    }

    function sentence(here, now) {
      const set = here.map((index, i) => `${data.labels[i]} ${data.said[i][index]}`).join(", ");
      const values = tiles.map((tile, i) => `${tile.querySelector(".ul-name").textContent} ${now.n[i]}`).join("; ");
      return `${set}. ${values ? values + ". " : ""}${now.s}`;
    }

    function table(now) {
      const body = $(".ul-here tbody");
      if (!body || !$(".ul-data").open) return;
      $(".ul-here caption").textContent = "The curves at this setting";
      const rows = [];
      now.i.map((n) => data.pool[n]).forEach((it) => {
        if (it.kind === "curve" && it.name) it.x.forEach((x, i) => rows.push([it.name, x, it.y[i]]));
      });
      body.replaceChildren(...rows.map((row) => {
        const tr = document.createElement("tr");
        row.forEach((v) => (tr.appendChild(document.createElement("td")).textContent = v === null ? "no value" : num(v) ? v.toLocaleString("en", { maximumSignificantDigits: 5 }) : v));
        return tr;
      }));
    }

    function reveal(words, pin) {
      waiting = false;
      root.classList.remove("ul-waiting");
      guess.hidden = true;
      $$("svg[data-panel]").forEach((svg) => svg.setAttribute("aria-label", svg.dataset.alt));
      if (control) form.insertBefore(control, form.children[data.commit.control] || null);
      form.hidden = false;
      $$(".ul-controls :disabled").forEach((input) => (input.disabled = false));
      if ($(".ul-data")) $(".ul-data").hidden = false;
      if (words) { reply.textContent = words; reply.hidden = false; }
      if (pin) pin();
      paint();
      status.textContent = `${words} ${sentence(at(), frame(at()))}`;
      clearTimeout(timer);
      const first = form.querySelector("input:checked, input[type=range]");
      if (first) first.focus({ preventScroll: true });
    }

    let control = null;
    if (data.commit) {
      waiting = true;
      root.classList.add("ul-waiting");
      guess.hidden = false;
      if ($(".ul-data")) $(".ul-data").hidden = true;
      $$("svg[data-panel]").forEach((svg) => {
        svg.dataset.alt = svg.getAttribute("aria-label");
        svg.setAttribute("aria-label", "Hidden until you commit to a guess.");
      });
      if (data.commit.way === "control") {
        control = form.children[data.commit.control];
        guess.querySelector(".ul-slot").appendChild(control); // the reader sets this one first
      }
      $$(".ul-controls input").forEach((input) => (input.disabled = true));
      form.hidden = form.children.length === 0;
      guess.addEventListener("input", (event) => {
        if (event.target.name !== "guess" || event.target.type !== "range") return;
        const words = data.commit.said[+event.target.value];
        event.target.setAttribute("aria-valuetext", words);
        event.target.closest("label").querySelector(".ul-value").textContent = words;
      });
      guess.addEventListener("submit", (event) => {
        event.preventDefault();
        if (data.commit.way === "control") {
          const here = at(), then = frame(here), words = data.said[data.commit.control][here[data.commit.control]];
          reveal(`You chose ${words}. Now move it.`, () => {
            pinned = then.i.map((n) => data.pool[n]).filter((it) => it.kind === "mark" && it.pin).map((it) => ({ ...it, ...data.pin }));
            tiles.forEach((tile, i) => {
              const dd = tile.querySelector(".ul-then");
              dd.textContent = `${data.pin.label}: ${then.n[i]}`;
              dd.hidden = false;
            });
          });
        } else {
          const picked = data.commit.way === "options" ? guess.querySelector("input:checked") : guess.querySelector('[name="guess"]');
          if (!picked) { status.textContent = "Choose an answer first."; guess.querySelector("input").focus(); return; }
          const i = +picked.value, said = data.commit.way === "options" ? picked.parentNode.textContent : "";
          reveal((said ? `You said: ${said}. `.replace(/([.?!])\. $/, "$1 ") : "") + data.commit.replies[i], () => {
            if (data.commit.marks && data.commit.marks.length) extra = [{ ...data.pool[data.commit.marks[i]], ...data.pin }];
          });
        }
      });
      guess.querySelector(".ul-skip").addEventListener("click", () => reveal("", null));
    }
    root.addEventListener("input", (event) => { if (event.target.name !== "guess") paint(); });
    form.addEventListener("submit", (event) => event.preventDefault());
    if ($(".ul-data")) $(".ul-data").addEventListener("toggle", () => table(frame(at())));
    // a browser that restores a page restores its sliders too: show what they say
    if (at().join() !== data.start.join()) paint();
  }

  document.querySelectorAll("figure[data-ul-moving]:not([data-ul-live])").forEach(start);
})();
