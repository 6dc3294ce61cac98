"use strict";
// Marks are kept per answer, under a key made of the lab, the part, its rubric and the answer's digest: what was marked
// stays when the page is made again, and an answer that changed is not marked.
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const items = data.questions.flatMap((question, q) =>
  question.answers.map((answer, a) => ({ question, answer, q, a, key: keyOf(question, answer), mark: null, draft: "" })));
let here = 0, asked = null;

function keyOf(question, answer) {
  const worth = question.rubric.map((one) => one.points + ":" + one.text).join("|");
  let sum = 5381;
  for (const sign of worth) sum = (sum * 33 + sign.codePointAt(0)) >>> 0;
  return ["underload-mark", question.lab, question.part, sum.toString(36), answer.digest].join(" ");
}

function memory(action) {
  try { return action(window.localStorage); } catch (error) { return null; }  // a browser may forbid it; Save still works
}

const number = (value) => String(Math.round(value * 100) / 100);
const total = (mark) => mark.criteria.reduce((sum, one) => sum + one, 0);
const same = (one, other) => one.criteria.every((value, index) => Math.abs(value - other.criteria[index]) < 1e-9);

// What the notebooks had stored below the task's own cells, since a rubric may ask for those numbers.
function drawPrinted(printed) {
  at("printed-box").hidden = !printed;
  if (!printed) return;
  const filled = printed.filter((cells) => cells.length).length;
  at("printed-title").textContent = filled
    ? "What this task's cells had printed" + (printed.length > 1 ? " for each who wrote this" : "")
    : "Handed in without the outputs of this task's cells";
  at("printed-box").open = filled > 0;
  at("printed").replaceChildren(...printed.flatMap((cells, index) => {
    const label = document.createElement("p");
    label.className = "small";
    label.textContent = "Notebook " + (index + 1) + " of " + printed.length + (cells.length ? "" : ": handed in without these outputs");
    const made = cells.map((text) => {
      const box = document.createElement("pre");
      box.className = "text part";
      box.tabIndex = 0;
      box.textContent = text;
      return box;
    });
    return printed.length > 1 ? [label, ...made] : made;
  }));
  if (!filled) at("printed").textContent = "Numbers of their own cells cannot be looked up here: they were not saved in the notebook.";
}

function say(text, links = []) {
  at("said").replaceChildren();
  if (!text) return;
  const line = document.createElement("p");
  line.className = "box";
  line.append(text + " ");
  for (const index of links) {
    const link = document.createElement("button");
    link.type = "button";
    link.className = "plain";
    link.textContent = "Answer " + (index + 1);
    link.addEventListener("click", () => show(index, true));
    line.append(link, " ");
  }
  at("said").append(line);
}

function keep(item) {
  memory((store) => item.mark ? store.setItem(item.key, JSON.stringify(item.mark)) : store.removeItem(item.key));
}

// A comment alone is no mark yet: it waits until points are given.
function note() {
  const item = items[here], text = at("comment").value;
  if (item.mark) return change(item, (mark) => { mark.comment = text; });
  item.draft = text;
  memory((store) => text ? store.setItem(item.key + " draft", text) : store.removeItem(item.key + " draft"));
}

function change(item, edit) {
  const mark = item.mark || { criteria: item.question.rubric.map(() => 0), comment: at("comment").value, marker: "" };
  edit(mark);
  mark.marker = at("marker").value.trim();
  item.mark = mark;
  keep(item);
  draw();
}

function give(index, value) {
  const worth = items[here].question.rubric[index].points;
  change(items[here], (mark) => { mark.criteria[index] = Math.min(worth, Math.max(0, value)); });
}

function toggle(index) {
  const item = items[here], one = item.question.rubric[index];
  if (one) give(index, item.mark && item.mark.criteria[index] >= one.points ? 0 : one.points);
}

function fill(all) {
  change(items[here], (mark) => { mark.criteria = items[here].question.rubric.map((one) => all ? one.points : 0); });
}

function takeBack() {
  const item = items[here];
  item.draft = at("comment").value;
  item.mark = null;
  keep(item);
  note();
  draw();
}

function draw() {
  const item = items[here], { question, answer, mark } = item;
  const done = items.filter((one) => one.mark).length;
  at("bar").max = items.length;
  at("bar").value = done;
  at("progress").textContent = done + " of " + items.length + " marked";
  at("which").textContent = "Answer " + (here + 1) + " of " + items.length;
  const count = answer.students.length;
  at("who").textContent = at("names").checked ? answer.students.join(", ") : count > 1 ? "Written by " + count + " students" : "";
  question.rubric.forEach((one, index) => {
    const got = mark ? mark.criteria[index] : 0;
    const tick = at("tick-" + index), field = at("given-" + index);
    tick.checked = !!mark && got >= one.points;
    tick.indeterminate = got > 0 && got < one.points;
    if (document.activeElement !== field) field.value = mark ? number(got) : "";
  });
  at("total").textContent = mark
    ? number(total(mark)) + " of " + number(question.points) + (question.points === 1 ? " point" : " points")
    : "Not marked yet";
  at("back").disabled = !mark;
}

function show(index, jump = false) {
  here = Math.min(items.length - 1, Math.max(0, index));
  const { question, answer, mark } = items[here];
  at("title").textContent = question.title;
  at("question").textContent = question.question;
  at("question-box").hidden = !question.question;
  at("answer").textContent = answer.text;
  if (question !== asked) {
    asked = question;
    at("question").scrollTop = 0;
    at("question-box").open = window.innerWidth > 700;  // on a phone it would push the answer out of sight
  }
  drawPrinted(answer.printed);
  at("model").textContent = question.model;
  at("model-box").hidden = !question.model;
  at("comment").value = mark ? mark.comment : items[here].draft;
  at("rubric").replaceChildren(...question.rubric.map((one, position) => {
    const row = document.createElement("li"), key = document.createElement("kbd"), given = document.createElement("span");
    const tick = document.createElement("input"), field = document.createElement("input"), text = document.createElement("label");
    key.textContent = position < 9 ? String(position + 1) : " ";
    tick.type = "checkbox";
    tick.id = "tick-" + position;
    tick.addEventListener("change", () => give(position, tick.checked ? one.points : 0));
    field.type = "number";
    field.id = "given-" + position;
    field.min = "0";
    field.max = String(one.points);
    field.step = "0.25";
    field.setAttribute("aria-label", "points for: " + one.text);
    field.addEventListener("input", () => { if (field.value !== "" && field.validity.valid) give(position, Number(field.value)); });
    field.addEventListener("blur", draw);
    text.htmlFor = tick.id;
    text.style.fontWeight = "400";
    text.textContent = one.text + " (" + number(one.points) + ")";
    given.className = "given";
    given.append(key, tick, field);
    row.append(given, document.createElement("span"), text);
    return row;
  }));
  draw();
  if (jump) window.scrollTo({ top: at("work").offsetTop });
}

function nextUnmarked() {
  for (let step = 1; step <= items.length; step += 1) {
    const index = (here + step) % items.length;
    if (!items[index].mark) return show(index, true);
  }
  say("All answers are marked. Save the marks.");
}

// A file without a name cannot say later who gave which mark, so it is asked for once.
function save(nameless = false) {
  if (!items.some((item) => item.mark)) return say("Nothing is marked yet, so there is nothing to save.");
  if (!nameless && !at("marker").value.trim()) {
    say("Write your name or initials above and press Enter, so that it can be told who gave which mark.");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "plain";
    button.id = "nameless";
    button.textContent = "Save without a name";
    button.addEventListener("click", () => save(true));
    at("said").firstChild.append(button);
    return at("marker").focus();
  }
  const marks = items.filter((item) => item.mark).flatMap((item) => item.answer.students.map((student) => ({
    student, lab: item.question.lab, part: item.question.part, digest: item.answer.digest,
    points: Math.round(total(item.mark) * 1e6) / 1e6, criteria: item.mark.criteria, comment: item.mark.comment,
    marker: item.mark.marker || at("marker").value.trim(),
  })));
  const file = { kind: data.kind, version: data.version, marker: at("marker").value.trim(), saved: new Date().toISOString(), marks };
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(file, null, 1)], { type: "application/json" }));
  link.download = "marks.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  const done = items.filter((item) => item.mark).length;
  say("Saved marks.json: " + done + " of " + items.length + " answers. Put it into the folder marks beside this page and grade again.");
}

function load(text, name) {
  let file = null;
  try { file = JSON.parse(text); } catch (error) { file = null; }
  if (!file || file.kind !== data.kind || file.version !== data.version || !Array.isArray(file.marks)) {
    return say(name + " is no file of marks of this kind; nothing was loaded.");
  }
  const byAnswer = new Map(items.map((item, index) => [[item.question.lab, item.question.part, item.answer.digest].join(" "), index]));
  const taken = new Set(), differ = new Set();
  let unknown = 0;
  for (const entry of file.marks) {
    const index = byAnswer.get([entry.lab, entry.part, entry.digest].join(" "));
    const item = items[index];
    const fits = item && Array.isArray(entry.criteria) && entry.criteria.length === item.question.rubric.length &&
      entry.criteria.every((value, place) => typeof value === "number" && value >= 0 && value <= item.question.rubric[place].points);
    if (!fits) { unknown += 1; continue; }
    const mark = { criteria: entry.criteria.slice(), comment: String(entry.comment || ""), marker: String(entry.marker || file.marker || "") };
    if (item.mark && !same(item.mark, mark)) { differ.add(index); continue; }
    if (!item.mark) { item.mark = mark; keep(item); taken.add(index); }
  }
  const parts = [taken.size + (taken.size === 1 ? " answer" : " answers") + " marked from " + name + "."];
  if (unknown) parts.push(unknown + " of its marks belong to no answer on this page (changed since, or of another class).");
  if (differ.size) parts.push("Marked otherwise here, and left as they are here:");
  const open = items.findIndex((item) => !item.mark);
  show(differ.size || open < 0 ? here : open);
  say(parts.join(" "), [...differ]);
}

// ---- start
let remembered = 0;
items.forEach((item) => {
  const kept = memory((store) => store.getItem(item.key));
  item.draft = memory((store) => store.getItem(item.key + " draft")) || "";
  let mark = null;
  try { mark = kept ? JSON.parse(kept) : null; } catch (error) { mark = null; }
  if (mark && Array.isArray(mark.criteria) && mark.criteria.length === item.question.rubric.length) {
    item.mark = mark;
    remembered += 1;
  } else if (item.answer.mark) {
    item.mark = { criteria: item.answer.mark.criteria.slice(), comment: item.answer.mark.comment, marker: item.answer.mark.marker || "" };
  }
});
at("marker").value = memory((store) => store.getItem("underload-marker")) || "";
at("marker").addEventListener("input", () => memory((store) => store.setItem("underload-marker", at("marker").value)));
at("names").addEventListener("change", draw);
at("comment").addEventListener("input", note);
at("next").addEventListener("click", () => show(here + 1, true));
at("previous").addEventListener("click", () => show(here - 1, true));
at("unmarked").addEventListener("click", nextUnmarked);
at("all").addEventListener("click", () => fill(true));
at("none").addEventListener("click", () => fill(false));
at("back").addEventListener("click", takeBack);
at("save").addEventListener("click", () => save());
at("marker").addEventListener("keydown", (event) => { if (event.key === "Enter") save(); });
at("load").addEventListener("change", async () => {
  const [file] = at("load").files;
  if (file) load(await file.text(), file.name);
  at("load").value = "";
});
at("load-label").addEventListener("keydown", (event) => {
  if (event.key === "Enter" || event.key === " ") { event.preventDefault(); at("load").click(); }
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input:not([type=checkbox]), textarea");
  if (event.key === "Escape" && typing) return event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const actions = {
    n: () => show(here + 1, true), p: () => show(here - 1, true), u: nextUnmarked, a: () => fill(true), 0: () => fill(false),
    x: takeBack, s: () => save(), c: () => at("comment").focus(),
  };
  if (/^[1-9]$/.test(event.key)) toggle(Number(event.key) - 1);
  else if (Object.hasOwn(actions, event.key)) actions[event.key]();
  else return;
  event.preventDefault();
});
at("work").hidden = false;
const first = items.findIndex((item) => !item.mark);
show(first < 0 ? 0 : first, first > 0);
if (remembered) {
  say(remembered + (remembered === 1 ? " answer was" : " answers were") + " marked in this browser before; those marks are here.");
}
