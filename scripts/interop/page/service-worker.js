"use strict";
// Keeps the files of the page, so that it works without a network. The address of this script has the
// version of model and engine, and each version has another cache. Pages in other folders of the same
// server have other caches too.

const PREFIX = `translation ${self.registration.scope}`;
const CACHE = PREFIX + self.location.search;
const PAGE = ["./", "page.js", "page.css", "icon.svg", "model.json"];

self.addEventListener("install", (event) => {
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(PAGE)));
  self.skipWaiting();
});

self.addEventListener("activate", (event) => {
  const remove = async () => {
    const names = (await caches.keys()).filter((name) => name.startsWith(`${PREFIX}?`) && name !== CACHE);
    await Promise.all(names.map((name) => caches.delete(name)));
    await self.clients.claim();
  };
  event.waitUntil(remove());
});

self.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (event.request.method !== "GET" || url.origin !== self.location.origin) return;
  const isLarge = /^(engine|model)\//.test(url.href.slice(self.registration.scope.length));
  event.respondWith(isLarge ? fromCache(event.request) : fromNetwork(event.request));
});

async function fromCache(request) {
  const kept = await (await caches.open(CACHE)).match(request.url);
  return kept ?? fromNetwork(request);
}

async function fromNetwork(request) {
  const cache = await caches.open(CACHE);
  try {
    // A file of a new version may have the name of an older one that the browser has kept.
    const response = await fetch(request, { cache: "no-cache" });
    if (response.ok) await cache.put(request.url, response.clone());
    return response;
  } catch (error) {
    const kept = await cache.match(request.url);
    if (kept) return kept;
    throw error;
  }
}
