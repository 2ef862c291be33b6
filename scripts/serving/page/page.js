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

function say(text, place = element("status"), isError = false) {
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
  say(error instanceof TypeError ? "The server does not answer." : error.message, place, true);
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
    const fields = { q, source, target, alternatives: ALTERNATIVES, confidence: settings.confidence };
    const answer = await ask("translate", "translate", fields);
    const language = answer.detectedLanguage?.language ?? source;
    say(source === AUTO ? `From ${languages.find(({ code }) => code === language).name}` : "");
    show({ q, source: language, target, best: answer.translatedText }, answer.alternatives);
    showConfidence(answer.confidence ?? []);
  } catch (error) {
    explain(error);
  }
}

function show(translation, alternatives = []) {
  shown = translation;
  element("confidence-hint").hidden = true;
  showWords(shown?.best ?? "");
  element("translation").lang = shown?.target ?? "";
  element("translation").classList.remove("old");
  showSwap();
  showAlternatives(alternatives);
  clearExplanations();
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

// The fields of all requests about the translation that is shown.
function pair() {
  return { q: shown.q, source: shown.source, target: shown.target };
}

// Attention: the words of the text that a word of the translation attended to.

const END = "</s>";
const HINT = "Point at a word of the translation, or go to it with Tab and the arrow keys.";
const MOST = 3; // words that are named

// Shows the translation. Tab leads to one of its words, and arrows lead to the others.
function showWords(text) {
  const place = element("translation");
  place.replaceChildren();
  for (const part of text.split(/(\s+)/)) {
    if (!part.trim()) {
      place.append(part);
      continue;
    }
    const word = add(place, "span", part, "word");
    word.tabIndex = word === place.firstElementChild ? 0 : -1;
    for (const event of ["pointerenter", "focus"]) word.addEventListener(event, () => attend(word));
  }
}

// Marks words by their probability, and the last word of each sentence with the confidence in the sentence.
function showConfidence(sentences) {
  const words = [...element("translation").children];
  for (const { confidence, words: texts, word_confidences: probabilities } of sentences) {
    let last = null;
    texts.forEach((text, i) => {
      // An inserted emoji is a word without a probability, or separates the punctuation from its word.
      const place = words.findIndex((word) => text.startsWith(word.textContent) || word.textContent.startsWith(text));
      if (place < 0) return;
      last = words.splice(0, place + 1).at(-1);
      last.style.setProperty("--weight", 1 - probabilities[i]);
      last.title = `probability ${percent(probabilities[i])}`;
    });
    if (last && confidence !== null) last.dataset.confidence = percent(confidence);
  }
  element("confidence-hint").hidden = sentences.length === 0;
}

function percent(value) {
  return `${Math.round(100 * value)} %`;
}

function moveToWord(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const words = [...element("translation").children];
  const next = words[words.indexOf(event.target) + step];
  if (!next) return;
  event.preventDefault();
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

async function attend(word) {
  const translation = shown;
  const words = [...element("translation").children];
  words.forEach((other) => other.classList.toggle("chosen", other === word));
  try {
    translation.attention ??= ask("attention", "explore/attention", { ...pair(), translation: shown.best });
    const { source, target, weights } = await translation.attention;
    if (!word.isConnected || !word.classList.contains("chosen")) return;
    showAttention(word.textContent, grouped(shown.q, source), grouped(shown.best, target)[words.indexOf(word)], weights);
  } catch (error) {
    translation.attention = undefined;
    explain(error, element("attended"));
  }
}

// Returns a {text, pieces} for each word of a text: its pieces are numbers of `pieces`. A tokenizer may write another
// text, with unknown characters for example. Then the words are those of the pieces.
function grouped(text, pieces) {
  const written = pieces.map((piece) => (piece === END ? "" : piece.replaceAll("\u2581", "")));
  const words = text.split(/\s+/).filter(Boolean).map((word) => ({ text: word, pieces: [] }));
  if (written.join("") !== words.map((word) => word.text).join("")) return groupedByPieces(pieces, written);
  let [begin, start] = [0, 0]; // of the piece and of the word, in characters
  const spans = written.map((piece) => [begin, (begin += piece.length)]);
  for (const word of words) {
    const end = start + word.text.length;
    // A mark of a word has no characters, and belongs to the word that begins there.
    spans.forEach(([from, to], i) => { if (from < end && (from >= start || to > start)) word.pieces.push(i); });
    start = end;
  }
  return words;
}

function groupedByPieces(pieces, written) {
  const words = [];
  pieces.forEach((piece, i) => {
    if (piece === END) return;
    if (piece.startsWith("\u2581") || words.length === 0) words.push({ text: "", pieces: [] });
    words.at(-1).text += written[i];
    words.at(-1).pieces.push(i);
  });
  return words;
}

// A word's weights are the mean of its pieces' rows; those of a source word are the sum of its pieces' columns.
function showAttention(text, sourceWords, targetWord, weights) {
  const place = element("attention");
  place.replaceChildren();
  if (!targetWord?.pieces.length) {
    say("The tokenizer writes this word differently.", element("attended"));
    return;
  }
  const end = { text: "end of text", pieces: [weights[0].length - 1], isEnd: true };
  const named = [...sourceWords, end].map((word) => {
    const weight = sum(targetWord.pieces.map((row) => sum(word.pieces.map((column) => weights[row][column])))) / targetWord.pieces.length;
    add(place, "span", word.text, word.isEnd ? "end" : "").style.setProperty("--weight", weight);
    place.append(" ");
    return { ...word, weight };
  });
  const most = named.sort((a, b) => b.weight - a.weight).slice(0, MOST);
  say(`${text} \u2190 ${most.map((word) => `${word.text} ${percent(word.weight)}`).join(", ")}`, element("attended"));
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

// Why not ...?

async function compare(event) {
  event.preventDefault();
  const own = element("own").value.trim();
  if (!own) return;
  try {
    const { scores } = await ask("compare", "explore/score", { ...pair(), translations: [shown.best, own] });
    const difference = scores[1].score - scores[0].score;
    const better = "Yours has the higher score: the search did not find it.";
    say(difference > 0 ? better : difference < 0 ? "The model's has the higher score." : "Both have the same score.", element("verdict"));
    element("compared").replaceChildren();
    scores.forEach((scored, i) => showTokens(i === 0 ? "The model's" : "Yours", scored));
  } catch (error) {
    element("compared").replaceChildren();
    explain(error, element("verdict"));
  }
}

// Shows the log-probability of each token. The less probable it is, the stronger is its colour.
function showTokens(title, scored) {
  add(element("compared"), "h3", `${title}: score ${number(scored.score)}, log-probability ${number(scored.log_probability)}`);
  const list = add(element("compared"), "ol", "", "tokens");
  scored.pieces.forEach((piece, i) => {
    const logProbability = scored.token_log_probabilities[i];
    const item = add(list, "li", piece.replaceAll("\u2581", "\u00b7"));
    item.style.setProperty("--weight", 1 - Math.exp(logProbability));
    add(item, "span", number(logProbability));
  });
}

// The beam search. The server sends a chart of Vega-Lite, whose records have the places of tokens and lines.

const [STEP, ROW, LONGEST] = [88, 20, 10]; // pixels, and characters of a token

async function showBeam() {
  const [place, status] = [element("beam"), element("beam-status")];
  try {
    const { datasets } = await ask("beam", "explore/beam", pair());
    const [records] = Object.values(datasets);
    say("", status);
    status.append("Each column is a step, the most probable hypothesis on top. The best translation is bold. ");
    for (const outcome of ["kept", "ended", "dropped"]) add(status, "span", outcome, `key ${outcome}`);
    place.replaceChildren(drawing(records));
    place.hidden = false;
  } catch (error) {
    place.hidden = true;
    explain(error, status);
  }
}

function draw(parent, kind, attributes, text = "") {
  const child = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) child.setAttribute(name, value);
  child.textContent = text;
  parent?.append(child);
  return child;
}

function drawing(records) {
  const width = STEP * (Math.max(...records.map(({ step }) => step)) + 1);
  const height = ROW * (Math.max(...records.map(({ rank }) => rank)) + 1);
  const best = records.filter((record) => record.is_best).at(-1);
  const svg = draw(null, "svg", { width, height, role: "img", "aria-label": `The best hypothesis: ${best?.hypothesis}` });
  const [x, y] = [(step) => STEP * (step + 0.5), (rank) => ROW * (rank - 0.2)];
  for (const record of records) {
    const className = `${record.outcome} ${record.is_best ? "best" : ""}`;
    if (record.from_x !== null) {
      draw(svg, "line", { x1: x(record.from_x), y1: y(record.from_rank), x2: x(record.to_x), y2: y(record.rank), class: className });
    }
    const token = [...record.token];
    const label = token.length > LONGEST ? `${token.slice(0, LONGEST - 1).join("")}…` : record.token;
    const text = draw(svg, "text", { x: x(record.step), y: y(record.rank), class: className }, label);
    draw(text, "title", {}, `${record.hypothesis}\nscore ${record.score}, log-probability ${record["log-probability"]}, ${record.outcome}`);
  }
  return svg;
}

function clearExplanations() {
  ["attention", "compare", "beam"].forEach(cancel);
  element("explanations").hidden = shown === null;
  say(HINT, element("attended"));
  for (const place of ["verdict", "beam-status"]) say("", element(place));
  for (const place of ["attention", "compared", "beam"]) element(place).replaceChildren();
  element("beam").hidden = true;
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
  element("translation").addEventListener("keydown", moveToWord);
  element("why").addEventListener("submit", compare);
  element("show-beam").addEventListener("click", showBeam);
  element("key").addEventListener("change", translate);
  element("key-form").addEventListener("submit", (event) => event.preventDefault());
  schedule(); // browsers keep the text of a page that is loaded again
}

start();
