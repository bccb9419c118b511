"use strict";
// The table of held-out questions, and what both pages draw alike. The hash holds the view (#step=3&outcome=wrong&open=17),
// so a link shows the same. Everything that a policy wrote is set as text.
const view = new URLSearchParams(location.hash.slice(1));
const questions = JSON.parse(document.getElementById("questions-data").textContent);
const { answer: answers, titles } = JSON.parse(document.getElementById("questions-titles").textContent);
const unfolded = new Set(); // task ids whose details are shown

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}
function choose(name, value) {
  if (value) view.set(name, value); else view.delete(name);
  history.replaceState(null, "", "#" + view);
}
function followHash(drawOthers) {
  window.onhashchange = () => {
    for (const key of [...view.keys()]) view.delete(key);
    new URLSearchParams(location.hash.slice(1)).forEach((value, key) => view.set(key, value));
    drawQuestionFilters(); drawQuestions(); drawOthers();
  };
}
function select(name, values, changed) {
  const label = element("label", "", name + " "), made = element("select");
  made.id = "filter-" + name;
  for (const [value, text] of [["", "all"], ...values]) {
    const option = element("option", "", text);
    option.value = value;
    made.append(option);
  }
  made.value = view.get(name) ?? "";
  made.onchange = () => { choose(name, made.value); changed(); };
  label.append(made);
  return label;
}
function counted(number, what) { return `${number} ${what}${number === 1 ? "" : "s"}`; }

// Rows that the other side lacks are marked where both sides are whole, so that a row left out is not called missing.
function drawRows(parent, title, shown, other, className) {
  const box = element("div"), scroll = element("div", "rows " + className), table = element("table"), body = element("tbody");
  const cut = shown.count > shown.rows.length ? `, the first ${shown.rows.length} of them here` : "";
  box.append(element("b", "", `${title}: ${counted(shown.count, "row")}${cut}`));
  const whole = other && !cut && other.count === other.rows.length, left = (other?.rows ?? []).map(row => JSON.stringify(row));
  for (const row of shown.rows) {
    const place = left.indexOf(JSON.stringify(row)), line = element("tr", whole && place < 0 ? "odd" : "");
    if (place >= 0) left.splice(place, 1);
    line.append(...row.map(cell => cell === null ? element("td", "none", "NULL") : element("td", "", String(cell))));
    body.append(line);
  }
  table.append(body);
  scroll.append(table);
  box.append(scroll);
  parent.append(box);
}
function drawText(parent, title, text) {
  if (!text) return;
  const box = element("div", "wide");
  box.append(element("b", "", title), element("pre", "", text));
  parent.append(box);
}
// What a judge compared: reference, expected and returned rows, the database's words.
function drawCompared(parent, compared, right, withReference = true) {
  const grid = element("div", "compared");
  drawText(grid, "handed in", compared.submitted);
  drawText(grid, "the database said", compared.error);
  if (withReference) drawReference(grid, compared, right ? null : compared.returned);
  if (!right && compared.state && compared.expected) drawRows(grid, "rows that only the reference leaves behind", compared.expected, compared.returned, "wanted");
  if (!right && compared.returned) drawRows(grid, compared.state ? "rows that only the agent leaves behind" : "returned", compared.returned, compared.expected, "");
  parent.append(grid);
}
function drawReference(grid, compared, returned) {
  drawText(grid, "reference", compared.reference);
  if (compared.expected && !compared.state) drawRows(grid, compared.ordered ? "expected, in this order" : "expected", compared.expected, returned, "wanted");
}

// A reward stands where nobody judged.
function isRewarded(answer) { return answer.right === null && answer.reward !== null; }
function verdictOf(answer) {
  if (isRewarded(answer)) return "reward " + Math.round(answer.reward * 1000) / 1000;
  return answer.right === null ? "not judged" : answer.right ? "right" : "wrong";
}
function drawAnswer(line, answer, title) {
  const sql = element("td", "answer"), verdict = element("td", "change");
  sql.dataset.title = `${answers} ${title}`; // a phone has no head of the table
  if (!answer) { sql.append(element("span", "none", "not asked")); line.append(sql, verdict); return; }
  sql.append(answer.sql ? element("div", "sql", answer.sql) : element("span", "none", "nothing"));
  const word = verdictOf(answer);
  verdict.append(element("span", answer.right === null ? "none" : word, word));
  if (!answer.right && answer.verdict && !isRewarded(answer)) verdict.append(element("div", "none", answer.verdict));
  line.append(sql, verdict);
}
function gain(row) {
  if (row.before?.right == null || row.after?.right == null) return (row.after?.reward ?? 0) - (row.before?.reward ?? 0);
  return Number(row.after.right) - Number(row.before.right);
}
function drawUnfolded(row, columns) {
  const line = element("tr", "details"), cell = element("td"), inner = element("div", "in-view"), both = element("div", "compared");
  cell.colSpan = columns; // a wide table scrolls, what is unfolded stays in view
  inner.append(element("p", "", row.question));
  const answers = ["before", "after"].filter(when => row[when]);
  const known = answers.map(when => row[when].comparison).filter(Boolean).pop();
  if (known) {
    const grid = element("div", "compared");
    drawReference(grid, known, answers.length === 1 && !row[answers[0]].right ? known.returned : null);
    inner.append(grid);
  } else inner.append(element("p", "none", "The run did not record what the judge compared: its environment does not say, or an earlier version wrote it."));
  for (const when of answers) both.append(drawOne(row[when], titles[when === "before" ? 0 : 1]));
  inner.append(both);
  cell.append(inner);
  line.append(cell);
  return line;
}
function drawOne(answer, title) {
  const box = element("div"), word = verdictOf(answer);
  box.append(element("h3", answer.right === null ? "none" : word, `${title}: ${word}${answer.verdict && answer.verdict !== "match" && !isRewarded(answer) ? ", " + answer.verdict : ""}`));
  if (!answer.comparison?.submitted && answer.sql) drawText(box, "said last", answer.sql);
  if (answer.comparison) drawCompared(box, answer.comparison, answer.right, false);
  drawText(box, "error", answer.error);
  return box;
}
function drawQuestions() {
  const box = document.getElementById("questions");
  if (!questions.length) { box.hidden = true; return; }
  const find = (view.get("find") ?? "").toLowerCase();
  const rows = questions.filter(row => (!view.get("result") || row.result === view.get("result")) && (!find || JSON.stringify(row).toLowerCase().includes(JSON.stringify(find).slice(1, -1))));
  document.getElementById("questions-matching").textContent = `${rows.length} of ${counted(questions.length, "question")} shown; a click shows the reference and the rows.`;
  const table = element("table"), head = element("tr"), body = element("tbody");
  for (const title of ["question", ...titles.flatMap(title => [`${answers} ${title}`, "verdict"]), ...(titles.length > 1 ? ["result"] : [])]) head.append(element("th", "", title));
  const top = element("thead");
  top.append(head);
  for (const row of rows) {
    const line = element("tr", "row"), asked = element("td", "asked"), open = element("button", "", row.question);
    open.setAttribute("aria-expanded", String(unfolded.has(row.task_id)));
    line.dataset.question = row.task_id;
    asked.append(open);
    line.append(asked);
    ["before", "after"].slice(0, titles.length).forEach((when, place) => drawAnswer(line, row[when], titles[place]));
    if (titles.length > 1) line.append(element("td", "change " + (gain(row) > 0 ? "right" : gain(row) < 0 ? "wrong" : "none"), row.result));
    line.onclick = () => { if (!unfolded.delete(row.task_id)) unfolded.add(row.task_id); drawQuestions(); };
    body.append(line);
    if (unfolded.has(row.task_id)) body.append(drawUnfolded(row, head.children.length));
  }
  table.append(top, body);
  box.replaceChildren(table);
}
function drawQuestionFilters() {
  const bar = document.getElementById("questions-filters");
  if (!questions.length) return;
  const numbers = new Map();
  for (const row of questions) numbers.set(row.result, (numbers.get(row.result) ?? 0) + 1);
  const label = element("label", "", "words "), find = element("input");
  find.id = "filter-find";
  find.type = "search";
  find.value = view.get("find") ?? "";
  find.oninput = () => { choose("find", find.value); drawQuestions(); };
  label.append(find);
  bar.replaceChildren(select("result", [...numbers].map(([name, number]) => [name, `${name} (${number})`]), drawQuestions), label);
}
drawQuestionFilters();
drawQuestions();
