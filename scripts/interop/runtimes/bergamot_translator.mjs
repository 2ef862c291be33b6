// Bergamot's engine in WebAssembly: decodes greedily in int8 with @browsermt/bergamot-translator.
//
// The docstring of the package explains the protocol. A request also has `engine`, the folder with the
// three files of the engine, and `files`: the names of the model, of the shortlist (or null) and of the
// vocabularies.

import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";
import vm from "node:vm";

const request = JSON.parse(fs.readFileSync(0, "utf8"));

// The engine is a worker of a browser: it expects `self`, and answers messages {id, name, args}.
function run(name) {
  const file = path.join(request.engine, name);
  vm.runInThisContext(fs.readFileSync(file, "utf8"), { filename: file });
}

const pending = new Map();
let receive;
globalThis.self = {
  addEventListener: (_, listener) => { receive = listener; },
  postMessage: ({ id, result, error }) => pending.get(id)(result, error),
  importScripts: run,
  fetch: async (url) => new Response(fs.readFileSync(url), { headers: { "Content-Type": "application/wasm" } }),
  location: pathToFileURL(path.join(request.engine, "translator-worker.js")),
};
run("translator-worker.js");

function call(name, ...args) {
  const id = pending.size + 1;
  return new Promise((accept, reject) => {
    pending.set(id, (result, error) => (error ? reject(new Error(error.message)) : accept(result)));
    receive({ data: { id, name, args } });
  });
}

function read(name) {
  return new Uint8Array(fs.readFileSync(path.join(request.folder, name))).buffer;
}

const pair = { from: "source", to: "target" };
const { model, shortlist, vocabularies } = request.files;
await call("initialize", {});
await call("loadTranslationModel", pair, {
  model: read(model),
  shortlist: shortlist && read(shortlist),
  vocabs: vocabularies.map(read),
  qualityModel: null,
  config: { "ssplit-mode": "sentence" }, // a text is one sentence
});

const greedy = [];
for (const text of request.sources) {
  // One by one, because the sentences of a batch share their candidates.
  const texts = [{ text, html: false, qualityScores: false }];
  const [translation] = await call("translate", { models: [pair], texts });
  greedy.push(translation.target.text);
}
const answer = { precision: "int8", versions: { node: process.version }, greedy, beam: greedy, scores: null };
fs.writeSync(1, JSON.stringify(answer));
process.exit(0);
