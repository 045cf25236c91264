// Keeps a page of the dashboard up to date. All markup comes from the server. This script receives events, fetches the
// page again if an event changes it, and replaces the elements that differ. It sets text, but never markup.

const LIVE = document.getElementById("live");
const BANNER = document.getElementById("banner");
const SAY = document.getElementById("say");
const EVENTS = document.body.dataset.events;
const LAPSED = "lapsed, may be taken over";
// How often the page is fetched without an event, because some of it changes as time passes: with locks that the server has
// not read yet, and without.
const SCANNED = 5_000;
const PASSED = 15_000;

// --- time ------------------------------------------------------------------------------------------------------------

// For each element with a time: when the time was correct, on this page's clock.
const since = new WeakMap();

/** Formats a duration like `span` of the server. */
function span(ms) {
  const s = Math.floor(ms / 1000);
  const two = (n) => String(n).padStart(2, "0");
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor(s / 60) % 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Updates the times and the remaining time of leases. Without a connection, they are not known. */
function tick() {
  if (document.body.classList.contains("stale")) return;
  const now = performance.now();
  for (const element of document.querySelectorAll("[data-up], [data-left]")) {
    if (!since.has(element)) since.set(element, now);
    const passed = now - since.get(element);
    if (element.dataset.up !== undefined) {
      setText(element, span(Number(element.dataset.up) + passed));
    } else {
      showLease(element, Number(element.dataset.left) - passed, passed);
    }
  }
}

function showLease(element, left, seenBefore) {
  const isOver = left <= 0;
  element.classList.toggle("over", isOver);
  const share = Math.max(0, Math.min(100, (left * 100) / Number(element.dataset.full)));
  element.querySelector(".fill")?.setAttribute("width", `${share}%`);
  const before = element.dataset.before;
  let text = before ? before + span(Math.max(0, left)) : `${span(Math.max(0, left))} left`;
  // The lease that was seen is over. The server must look again to know whether it was renewed since then.
  if (isOver && !before) text = seenBefore < 3000 ? LAPSED : `not renewed as of ${span(seenBefore)} ago`;
  setText(element.querySelector(".left"), text);
}

/** Handles the event that the server has looked at a lock: updates the remaining time of its lease. */
function look(event) {
  const { lock, now, version } = JSON.parse(event.data);
  const left = now?.held_by?.lapses_within_ms;
  for (const row of document.querySelectorAll("[data-lock]")) {
    if (row.dataset.lock !== lock) continue;
    if (row.dataset.version !== version) soon(); // the lock changed before the stream was open
    const lease = row.querySelector("[data-left]");
    if (!lease || left === undefined || left === null) continue;
    lease.dataset.left = left;
    since.set(lease, performance.now());
  }
}

// --- changes ---------------------------------------------------------------------------------------------------------

// The text that the user typed into each field, including fields that are not on the page at the moment.
const typed = new Map();
document.addEventListener("input", ({ target }) => typed.set(target.id, target.value));

/** Replaces `old` with `fresh` if they differ. Keeps the focus and the text that the user typed. */
function patch(old, fresh) {
  const isSame = ["version", "trouble"].every((key) => old.dataset[key] === fresh.dataset[key]);
  if (old.dataset.version !== undefined && isSame) {
    takeTimes(old, fresh);
    return false;
  }
  if (old.dataset.version === undefined && old.textContent === fresh.textContent) return false;
  const focus = old.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  for (const field of fresh.querySelectorAll("input[id], select[id]")) {
    if (typed.has(field.id)) field.value = typed.get(field.id);
  }
  if (old.dataset.version !== undefined) fresh.classList.add("changed");
  old.replaceWith(fresh);
  if (focus !== undefined) {
    [...fresh.querySelectorAll("[data-focus]")].find((element) => element.dataset.focus === focus)?.focus({ preventScroll: true });
  }
  return true;
}

/** Copies the times of `fresh` to `old`, which is otherwise the same. */
function takeTimes(old, fresh) {
  const times = (element) => element.querySelectorAll("[data-up], [data-left]");
  const from = times(fresh);
  times(old).forEach((element, at) => {
    if (!from[at]) return;
    if (element.dataset.up !== undefined) element.dataset.up = from[at].dataset.up;
    if (element.dataset.left !== undefined) element.dataset.left = from[at].dataset.left;
    since.set(element, performance.now());
  });
}

/** Updates a list of rows. Rows that remain keep their element. */
function patchList(old, fresh, said) {
  const rows = new Map([...old.children].map((row) => [row.dataset.key, row]));
  let place = old.firstElementChild;
  for (const row of [...fresh.children]) {
    const known = rows.get(row.dataset.key);
    rows.delete(row.dataset.key);
    if (!known) {
      row.classList.add("changed");
      old.insertBefore(row, place);
      if (row.dataset.say) said.push(row.dataset.say);
      continue;
    }
    if (known === place) place = place.nextElementSibling;
    else old.insertBefore(known, place);
    if (patch(known, row) && row.dataset.say) said.push(row.dataset.say);
  }
  for (const row of rows.values()) {
    if (row.contains(document.activeElement)) document.getElementById("content").focus({ preventScroll: true });
    row.remove();
  }
}

/** Fetches this page again and shows the changes. */
async function refresh() {
  const response = await fetch(location.href, { headers: { "leasehold-update": "1" } });
  if (response.redirected) return location.reload(); // the session has ended
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  if (!response.ok) throw new Error(fresh.querySelector("[role=alert] p")?.textContent ?? `status ${response.status}`);
  const said = [];
  for (const old of document.querySelectorAll("main [data-list]")) {
    const list = fresh.querySelector(`main [data-list="${old.dataset.list}"]`);
    if (list) patchList(old, list, said);
  }
  const parts = new Map([...fresh.querySelectorAll("main [data-key]")].map((part) => [part.dataset.key, part]));
  for (const old of document.querySelectorAll("main [data-key]:not([data-list] *)")) {
    const part = parts.get(old.dataset.key);
    if (part && patch(old, part) && part.dataset.say) said.push(part.dataset.say);
  }
  document.getElementById("asof").replaceChildren(...fresh.getElementById("asof").childNodes);
  announce(said);
  tellIfFree();
  showCopies();
  tick();
}

const tell = document.getElementById("tell");
const title = document.title;

/** Tells a user who asked for it that the lock is free. Screen readers announce each change anyway. */
function tellIfFree() {
  const isFree = document.querySelector("section[data-lock] .state.free") !== null;
  if (!isFree) document.title = title;
  if (!isFree || !tell?.checked) return;
  tell.checked = false;
  document.title = `Free: ${title}`;
  if (globalThis.Notification?.permission === "granted") new Notification(document.title);
  follow();
}

/** Shows the buttons that copy a text. Browsers copy only on https and on this machine. */
function showCopies() {
  if (!navigator.clipboard) return;
  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
}

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy);
  setText(SAY, "Copied");
  button.classList.add("copied");
  setTimeout(() => button.classList.remove("copied"), 2000);
});

let toSay = [];
let saying;

/** Announces changes to screen readers, at most once in five seconds. */
function announce(said) {
  toSay.push(...said);
  if (toSay.length === 0 || saying) return;
  saying = setTimeout(() => {
    setText(SAY, toSay.length > 3 ? `${toSay.length} locks have changed` : toSay.join(". "));
    toSay = [];
    saying = undefined;
  }, 5000);
}

// --- the stream ------------------------------------------------------------------------------------------------------

let source;
let retry;
let pending;
let refreshed = 0; // when the latest refresh ended
let took = 0; // how long it took
let isStoreDown = false;
let wasOpen = false;

/** Refreshes the page soon, so that many events cause one request, and a long page few. */
function soon() {
  pending ??= setTimeout(async () => {
    const began = performance.now();
    try {
      await refresh();
      if (!isStoreDown && source?.readyState === EventSource.OPEN) connected();
    } catch (error) {
      lost(error instanceof TypeError ? undefined : error.message);
    } finally {
      pending = undefined;
      refreshed = performance.now();
      took = refreshed - began;
    }
  }, Math.max(400, 5 * took));
}

function connected() {
  document.body.classList.remove("stale");
  BANNER.hidden = true;
  LIVE.dataset.live = "on";
  setText(LIVE, "Live");
}

/** Shows that the page may be outdated. */
function lost(why = "the connection to the server is lost") {
  document.body.classList.add("stale");
  // No lease is known to have run out: its holder may renew it while nobody looks.
  for (const lease of document.querySelectorAll("[data-left]")) {
    lease.classList.remove("over");
    setText(lease.querySelector(".left"), "unknown");
  }
  LIVE.dataset.live = "off";
  setText(LIVE, "Not live");
  const asOf = document.getElementById("asof").textContent.trim().replace("As of", "as of");
  setText(BANNER, `${why[0].toUpperCase()}${why.slice(1)}. This page shows the state ${asOf}, which may be outdated.`);
  BANNER.hidden = false;
}

function open() {
  source = new EventSource(EVENTS);
  source.onopen = () => {
    // The stream may have missed that the store responds again. If the store is still down, the refresh fails.
    isStoreDown = false;
    // The page is new when the stream opens first. Later, changes may have happened while the stream was closed.
    if (wasOpen) soon();
    else connected();
    wasOpen = true;
  };
  for (const kind of ["lock", "gone", "acquired", "released", "evicted", "lost", "reset"]) source.addEventListener(kind, soon);
  source.addEventListener("look", look);
  source.addEventListener("unavailable", (event) => {
    isStoreDown = true;
    lost(JSON.parse(event.data).reason);
  });
  source.addEventListener("available", () => {
    isStoreDown = false;
    soon();
  });
  source.onerror = () => {
    lost();
    // The browser reconnects by itself, except after an error response. If the session has ended, the refresh leads to
    // the sign-in page.
    if (source?.readyState !== EventSource.CLOSED) return;
    retry = setTimeout(open, 5000);
    soon();
  };
}

function close() {
  source?.close();
  source = undefined;
  clearTimeout(retry);
  clearTimeout(pending);
  pending = undefined;
  LIVE.dataset.live = "off";
  setText(LIVE, "Paused");
}

/**
 * Streams events while the page is visible or its user wants a notification. Other hidden tabs cause no requests to the
 * store.
 */
function follow() {
  if (document.hidden && !tell?.checked) close();
  else if (!source) open();
}

// --- start -----------------------------------------------------------------------------------------------------------

const form = document.querySelector("form[data-confirm]");
if (form) {
  const [confirm, reason, button] = [form.elements.confirm, form.elements.reason, form.querySelector("button")];
  const check = () => {
    button.disabled = confirm.value.trim() !== form.dataset.confirm || reason.value.trim() === "";
  };
  form.addEventListener("input", check);
  check();
}

showCopies();
tick();
setInterval(() => {
  if (document.hidden) return;
  tick();
  const pause = document.querySelector("[data-scan]") ? SCANNED : PASSED;
  if (source?.readyState === EventSource.OPEN && performance.now() - refreshed > pause) soon();
}, 1000);

if (EVENTS) {
  LIVE.hidden = false;
  if (tell) {
    tell.parentElement.hidden = false;
    tell.addEventListener("change", () => {
      if (tell.checked) globalThis.Notification?.requestPermission();
      tellIfFree();
    });
  }
  follow();
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && follow());
}
