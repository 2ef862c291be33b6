"use strict";
// Keeps the files of the page, so that it works without a network. The address of this script has the
// version of model and engine: a new version gets a cache of its own.

const CACHE = `translation${self.location.search}`;
const PAGE = ["./", "page.js", "page.css", "icon.svg", "model.json"];

self.addEventListener("install", (event) => {
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(PAGE)));
  self.skipWaiting();
});

self.addEventListener("activate", (event) => {
  const remove = async () => {
    const names = (await caches.keys()).filter((name) => name.startsWith("translation?") && name !== CACHE);
    await Promise.all(names.map((name) => caches.delete(name)));
    await self.clients.claim();
  };
  event.waitUntil(remove());
});

self.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (event.request.method !== "GET" || url.origin !== self.location.origin) return;
  const isLarge = /\/(engine|model)\//.test(url.pathname);
  event.respondWith(isLarge ? fromCache(event.request) : fromNetwork(event.request));
});

async function fromCache(request) {
  const kept = await (await caches.open(CACHE)).match(request.url);
  return kept ?? fromNetwork(request);
}

async function fromNetwork(request) {
  const cache = await caches.open(CACHE);
  try {
    const response = await fetch(request);
    if (response.ok) await cache.put(request.url, response.clone());
    return response;
  } catch (error) {
    const kept = await cache.match(request.url);
    if (kept) return kept;
    throw error;
  }
}
