"use strict";
const root = document.documentElement;
const element = (id) => document.getElementById(id);
const ALTERNATIVES = 3;
const AUTO = "auto";

let settings = null;
let languages = [];
let shown = null; // the last translation: {q, source, target, best}

// Elements. Texts of models and readers are never markup.

function add(parent, kind, text, className = "") {
  const child = document.createElement(kind);
  child.textContent = text;
  child.className = className;
  parent.append(child);
  return child;
}

function say(text, isError = false, place = element("status")) {
  place.textContent = text;
  place.classList.toggle("error", isError);
}

function number(value) {
  return value.toFixed(2).replace("-", "\u2212"); // the minus sign
}

// Requests. Those of one kind replace each other: only the last answer counts.

const latest = new Map();

function cancel(kind) {
  latest.get(kind)?.abort();
  latest.delete(kind);
}

async function ask(kind, path, fields) {
  cancel(kind);
  const controller = new AbortController();
  latest.set(kind, controller);
  const key = element("key").value;
  const body = JSON.stringify(key ? { ...fields, api_key: key } : fields);
  return answerOf(await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body, signal: controller.signal }));
}

async function answerOf(response) {
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// Shows why a request failed. A request that was replaced did not fail.
function explain(error, place) {
  if (error.name === "AbortError") return;
  say(error instanceof TypeError ? "The server does not answer." : error.message, true, place);
}

// Languages.

function fill(select, codes) {
  const before = select.value;
  select.replaceChildren();
  for (const code of codes) {
    const language = languages.find((other) => other.code === code);
    add(select, "option", language ? language.name : "Detect").value = code;
  }
  if (codes.includes(before)) select.value = before;
}

function targetsOf(source) {
  const chosen = languages.filter(({ code }) => source === AUTO || code === source);
  return [...new Set(chosen.flatMap(({ targets }) => targets))];
}

function showTargets() {
  fill(element("target"), targetsOf(element("source").value));
  showSwap();
}

function showSwap() {
  element("swap").disabled = !targetsOf(element("target").value).includes(sourceLanguage());
}

function sourceLanguage() {
  const chosen = element("source").value;
  return chosen === AUTO ? shown?.source : chosen;
}

function swap() {
  const [source, target] = [sourceLanguage(), element("target").value];
  if (shown) element("text").value = shown.best;
  element("source").value = target;
  showTargets();
  element("target").value = source;
  showSwap();
  translate();
}

// Translations.

let timer = 0;

function schedule() {
  const length = [...element("text").value].length;
  element("size").textContent = `${length} of ${settings.charLimit} characters`;
  element("size").classList.toggle("error", length > settings.charLimit);
  cancel("translate"); // its answer would be that of another text
  say("");
  element("translation").classList.add("old");
  clearTimeout(timer);
  timer = setTimeout(translate, settings.frontendTimeout);
}

async function translate() {
  clearTimeout(timer);
  const [q, source, target] = [element("text").value, element("source").value, element("target").value];
  if (!q.trim()) {
    cancel("translate");
    say("");
    show(null);
    return;
  }
  say("Translating …");
  try {
    const answer = await ask("translate", "translate", { q, source, target, alternatives: ALTERNATIVES });
    const language = answer.detectedLanguage?.language ?? source;
    say(source === AUTO ? `From ${languages.find(({ code }) => code === language).name}` : "");
    show({ q, source: language, target, best: answer.translatedText }, answer.alternatives);
  } catch (error) {
    explain(error);
  }
}

function show(translation, alternatives = []) {
  shown = translation;
  element("translation").textContent = shown?.best ?? "";
  element("translation").lang = shown?.target ?? "";
  element("translation").classList.remove("old");
  showSwap();
  showAlternatives(alternatives);
}

async function showAlternatives(alternatives) {
  const list = element("alternatives-list");
  cancel("score");
  list.replaceChildren();
  element("alternatives").hidden = alternatives.length === 0;
  if (alternatives.length === 0) return;
  const texts = [shown.best, ...alternatives];
  const items = texts.map((text) => {
    const item = add(list, "li", "");
    add(item, "span", text).lang = shown.target;
    return item;
  });
  try {
    const { scores } = await ask("score", "explore/score", { ...pair(), translations: texts });
    scores.forEach(({ score }, i) => add(items[i], "span", number(score), "score"));
  } catch (error) {
    if (error.name !== "AbortError") items.forEach((item) => add(item, "span", "no score", "score"));
  }
}

function pair() {
  return { q: shown.q, source: shown.source, target: shown.target };
}

// The theme: that of the system, until the reader chooses.

const systemTheme = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : systemTheme.matches;
}

function showTheme() {
  element("theme").setAttribute("aria-pressed", String(isDark()));
}

async function start() {
  showTheme();
  systemTheme.addEventListener("change", showTheme);
  element("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  });
  try {
    [settings, languages] = await Promise.all(["frontend/settings", "languages"].map(async (path) => answerOf(await fetch(path))));
  } catch (error) {
    explain(error);
    return;
  }
  const sources = languages.filter(({ targets }) => targets.length).map(({ code }) => code);
  fill(element("source"), sources.length > 1 ? [...sources, AUTO] : sources);
  element("source").value = settings.language.source.code;
  showTargets();
  element("target").value = settings.language.target.code;
  showSwap();
  element("key-form").hidden = !settings.keyRequired;
  element("text").addEventListener("input", schedule);
  element("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) translate();
  });
  element("source").addEventListener("change", () => { showTargets(); translate(); });
  element("target").addEventListener("change", () => { showSwap(); translate(); });
  element("swap").addEventListener("click", swap);
  element("key").addEventListener("change", translate);
  element("key-form").addEventListener("submit", (event) => event.preventDefault());
  schedule(); // browsers keep the text of a page that is loaded again
}

start();
