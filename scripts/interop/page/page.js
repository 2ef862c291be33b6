"use strict";
const root = document.documentElement;
const element = (id) => document.getElementById(id);
const PAUSE = 300; // milliseconds without a key before a translation
const ENGINE = "engine/translator-worker.js";
const PAIR = { from: "source", to: "target" }; // the engine's name of the model

class Problem extends Error {} // with a message for the reader

function say(text, place = element("status"), isError = false) {
  place.textContent = text;
  place.classList.toggle("error", isError);
}

function explain(error, place) {
  console.info(error);
  say(error instanceof Problem ? error.message : `The page failed: ${error.message}`, place, true);
}

// Theme: light or dark follows the system until the reader chooses.

function showTheme() {
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  element("theme").setAttribute("aria-pressed", isDark);
}

element("theme").addEventListener("click", () => {
  const isDark = element("theme").getAttribute("aria-pressed") === "true";
  root.dataset.theme = isDark ? "light" : "dark";
  showTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
showTheme();

// Loading.

// The smallest module with an instruction of SIMD: the function () => i8x16.popcnt(i8x16.splat(0)).
const SIMD = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11];

function checkBrowser() {
  const hasSimd = typeof WebAssembly === "object" && WebAssembly.validate(new Uint8Array(SIMD));
  if (!hasSimd) throw new Problem("This browser lacks WebAssembly SIMD, which the translator needs. Please update the browser.");
}

async function get(path) {
  let response;
  try {
    response = await fetch(path);
  } catch {
    throw new Problem(`${path} cannot be loaded. Is this computer online, and the page on a web server?`);
  }
  if (response.ok) return response;
  const part = path.startsWith("engine/") ? "The translation engine is missing" : "A file of the model is missing";
  throw new Problem(`${part}: this folder lacks ${path}. Export it again.`);
}

// Waits until the service worker of this version answers requests, so that it can keep the files.
async function keepForLater(version) {
  if (!("serviceWorker" in navigator)) return; // such as over plain HTTP
  const container = navigator.serviceWorker;
  const isCurrent = () => container.controller?.scriptURL.endsWith(`?${version}`);
  try {
    await container.register(`service-worker.js?${version}`);
    if (isCurrent()) return;
    await new Promise((accept) => {
      container.addEventListener("controllerchange", () => isCurrent() && accept());
      setTimeout(accept, 5000); // the page works without it
    });
  } catch (error) {
    console.info(error);
  }
}

// Returns the contents of the files by path, and shows how much has arrived.
async function download(bytes) {
  const total = Object.values(bytes).reduce((sum, size) => sum + size, 0);
  const megabytes = (size) => (size / 1e6).toFixed(1);
  const contents = {};
  let loaded = 0;
  element("progress").hidden = false;
  for (const path of Object.keys(bytes)) {
    const reader = (await get(path)).body.getReader();
    const parts = [];
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      parts.push(part.value);
      loaded += part.value.length;
      element("progress").value = loaded / total;
      say(`Loading: ${megabytes(loaded)} of ${megabytes(total)} MB`, element("loading"));
    }
    contents[path] = await new Blob(parts).arrayBuffer();
  }
  return contents;
}

// The engine is a worker, which answers messages {id, name, args} with {id, result, error}.
function startEngine() {
  const worker = new Worker(ENGINE);
  const pending = new Map();
  let last = 0;
  let fail;
  const failure = new Promise((_, reject) => { fail = reject; });
  worker.addEventListener("error", (event) => fail(new Error(event.message || "the engine does not start")));
  worker.addEventListener("message", ({ data: { id, result, error } }) => {
    const { accept, reject } = pending.get(id);
    pending.delete(id);
    if (error) reject(new Error(error.message));
    else accept(result);
  });
  return (name, ...args) => Promise.race([failure, new Promise((accept, reject) => {
    pending.set((last += 1), { accept, reject });
    worker.postMessage({ id: last, name, args });
  })]);
}

async function load() {
  checkBrowser();
  const settings = await (await get("model.json")).json();
  const names = new Intl.DisplayNames(["en"], { type: "language" });
  element("direction").textContent = `From ${names.of(settings.source)} to ${names.of(settings.target)}`;
  element("text").lang = settings.source;
  element("translation").lang = settings.target;
  await keepForLater(settings.version);
  const contents = await download(settings.bytes);

  say("Starting the engine …", element("loading"));
  const call = startEngine();
  await call("initialize", {});
  await call("loadTranslationModel", PAIR, {
    model: contents[settings.model],
    shortlist: settings.shortlist && contents[settings.shortlist],
    vocabs: settings.vocabularies.map((path) => contents[path]),
    qualityModel: null,
    config: {},
  });
  element("progress").hidden = true;
  say("Ready", element("loading"));
  return call;
}

// Translations. The engine translates one text at a time; of the texts typed meanwhile, the last counts.

let timer = 0;
let isBusy = false;
let shown = "";

async function translate(call) {
  const text = element("text").value;
  if (isBusy || text === shown) return;
  isBusy = true;
  say("Translating …");
  try {
    const lines = text.split("\n").map((line) => ({ text: line, html: false, qualityScores: false }));
    const results = text.trim() ? await call("translate", { models: [PAIR], texts: lines }) : [];
    element("translation").textContent = results.map(({ target }) => target.text).join("\n");
    say("");
  } catch (error) {
    explain(error);
  }
  shown = text;
  isBusy = false;
  translate(call);
}

load().then((call) => {
  element("text").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(translate, PAUSE, call);
  });
  translate(call); // a text typed while the model was loaded
}).catch((error) => {
  element("progress").hidden = true;
  explain(error, element("loading"));
});
