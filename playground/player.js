// One run, stepped in the browser. Reads props.value: "#<run id>", then one JSON object per line:
//   {i, status, html}  a frame; a later line with the same i replaces it      {progress, fraction}  work under way
//   {query}            the URL that repeats the run                          {end}  "done", "stopped" or "failed"
const find = (selector) => element.querySelector(selector);
const picture = find(".picture"), status = find(".status"), seek = find(".seek"), count = find(".count");
const progress = find(".progress"), what = find(".what"), meter = find("progress"), fallback = find(".detail.fallback");
const prev = find(".prev"), play = find(".play"), next = find(".next"), speed = find(".speed");
const save = find(".save"), open = find(".open"), file = find(".file");
const MAX_FILE = 8e6; // bytes of a saved run
const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;

let runId = "", nextId = "", text = "", parsed = 0; // text is what was parsed so far
let frames = [], isStale = false, at = -1, isFollowing = true, timer = null, height = 0, width = 0;
let wantedStep = Math.trunc(Number(new URLSearchParams(location.search).get("step"))) || 0;

find(".invite").textContent = props.invite || "";

// --- reading --------------------------------------------------------------------------------------------------------

function read() {
  const value = props.value || "";
  if (!value.startsWith(text) || value === "") start(value);
  const end = value.lastIndexOf("\n") + 1;
  const lines = value.slice(parsed, end).split("\n");
  text = value.slice(0, end);
  parsed = end;
  let newest = -1, isRedrawn = false, ended = "";
  for (const line of lines) {
    if (line === "" ) continue;
    if (line[0] === "#") { nextId = line.slice(1); continue; }
    const data = JSON.parse(line);
    if ("i" in data) {
      runId = nextId; // a run without a frame leaves the one before it in place
      if (isStale) { frames = []; isStale = false; at = -1; height = 0; picture.style.minHeight = ""; save.disabled = false; }
      frames[data.i] = data;
      newest = Math.max(newest, data.i);
      isRedrawn ||= data.i === at;
    }
    if ("progress" in data) tell(data.progress, data.fraction);
    if ("query" in data) remember(data.query);
    if ("end" in data) ended = data.end;
  }
  if (newest >= 0) {
    if (frames.length) tell("");
    if (wantedStep && frames.length >= wantedStep) { isFollowing = false; show(wantedStep - 1); wantedStep = 0; }
    else if (at < 0 || (isFollowing && !isCalm && newest > at)) show(isCalm ? 0 : newest);
    else if (isRedrawn) show(at);
    else tie();
  }
  if (ended) finish(ended);
}

function start(value) {
  text = ""; parsed = 0; isStale = true; isFollowing = true;
  pause();
  if (value === "") { frames = []; at = -1; tell(""); }
}

function finish(end) {
  tell("");
  if (end === "stopped") note("Stopped. ");
  isFollowing = false;
}

function tell(words, fraction) {
  const invite = picture.querySelector(".invite");
  if (invite) invite.textContent = words ? "The steps appear here as they are made." : props.invite || "";
  progress.hidden = !words;
  what.textContent = words;
  if (fraction === null || fraction === undefined) meter.removeAttribute("value"); else meter.value = fraction;
}

function note(words) {
  if (status.firstChild) status.prepend(words); else status.textContent = words;
}

function remember(query) {
  const old = new URLSearchParams(location.search), now = new URLSearchParams(query);
  for (const kept of ["hide", "__theme"]) if (old.has(kept)) now.set(kept, old.get(kept));
  write(now);
}

function write(search) {
  const query = search.toString();
  history.replaceState(history.state, "", location.pathname + (query ? "?" + query : "") + location.hash);
}

// --- showing --------------------------------------------------------------------------------------------------------

function show(index) {
  at = Math.max(0, Math.min(index, frames.length - 1));
  const frame = frames[at];
  if (!frame) return;
  fallback.hidden = true;
  picture.innerHTML = frame.html; // made by the lab's views, which escape every text
  steady();
  status.replaceChildren(...sentence(frame.status));
  tie();
}

function steady() { // frames of about one height keep the page below still; a much shorter one lets it move up
  picture.style.minHeight = "";
  const natural = picture.offsetHeight;
  height = natural < 0.7 * height ? natural : Math.max(height, natural);
  picture.style.minHeight = height + "px";
}

function sentence(words) { // the first sentence stands out
  const cut = words.search(/[.!?](\s|$)/) + 1;
  const bold = document.createElement("b");
  bold.textContent = cut > 0 ? words.slice(0, cut) : words;
  return cut > 0 ? [bold, words.slice(cut)] : [bold];
}

function tie() { // buttons, range and count to the position
  const last = frames.length - 1;
  seek.max = Math.max(1, frames.length);
  seek.value = at + 1;
  seek.disabled = play.disabled = last < 1;
  prev.disabled = at <= 0;
  next.disabled = at >= last;
  save.disabled = !runId || last < 0;
  count.textContent = last >= 0 ? `${at + 1} of ${frames.length}` : "";
  seek.setAttribute("aria-valuetext", last >= 0 ? `Step ${at + 1} of ${frames.length}: ${frames[at]?.status ?? ""}` : "No steps yet");
  seek.style.setProperty("--done", last > 0 ? `${(100 * at) / last}%` : "0%");
}

function step(index) { // the user's own
  if (!frames.length) return;
  isFollowing = index >= frames.length - 1;
  show(index);
  const search = new URLSearchParams(location.search);
  search.set("step", at + 1);
  write(search);
}

function pause() {
  clearInterval(timer);
  timer = null;
  play.setAttribute("aria-label", "Play");
  play.classList.remove("is-playing");
}

function toggle() {
  if (timer) return pause();
  if (frames.length < 2) return;
  if (at >= frames.length - 1) step(0);
  play.setAttribute("aria-label", "Pause");
  play.classList.add("is-playing");
  timer = setInterval(() => {
    if (!element.isConnected || at >= frames.length - 1) return pause();
    step(at + 1);
  }, Number(speed.value));
}

// --- listening ------------------------------------------------------------------------------------------------------

prev.onclick = () => { pause(); step(at - 1); };
next.onclick = () => { pause(); step(at + 1); };
play.onclick = toggle;
seek.oninput = () => { pause(); step(Number(seek.value) - 1); };
speed.onchange = () => { if (timer) { pause(); toggle(); } };

function point(event) {
  const target = event.target.closest?.("[data-detail]");
  if (!target || !picture.contains(target)) return;
  const line = target.closest("[data-figure]")?.querySelector(".detail") ?? picture.querySelector(".detail") ?? fallback;
  line.textContent = target.dataset.detail;
  line.hidden = false;
}
picture.addEventListener("mouseover", point);
picture.addEventListener("focusin", point);

const KEYS = { ArrowLeft: () => step(at - 1), ArrowRight: () => step(at + 1), Home: () => step(0), End: () => step(frames.length - 1), " ": toggle };
const BUSY = "input, textarea, select, [contenteditable], [role=slider], [role=listbox], [role=tab], [role=textbox], .cm-editor";

function onKey(event) {
  if (!element.isConnected) return document.removeEventListener("keydown", onKey);
  const action = KEYS[event.key], target = event.target;
  if (!action || !frames.length || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || event.defaultPrevented) return;
  const isOwnRange = target === seek;
  if (target.closest?.(BUSY) && !(isOwnRange && event.key === " ")) return; // the range moves itself
  if (event.key === " " && target.closest?.("button, summary, a, label")) return;
  event.preventDefault();
  if (event.key !== " ") pause();
  action();
}
document.addEventListener("keydown", onKey);

function onRun(event) {
  if (!element.isConnected) return document.removeEventListener("click", onRun);
  if (!event.target.closest?.("#run")) return;
  tell("Starting. If another run is under way, this one waits for it.");
  if (innerWidth < 800) element.scrollIntoView({ behavior: isCalm ? "auto" : "smooth", block: "start" });
}
document.addEventListener("click", onRun);

save.onclick = async () => {
  const trace = await server[props.save_name](runId);
  if (trace === null) return note("This run is no longer kept by the server; run it again to save it. ");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([trace], { type: "application/json" }));
  link.download = `${location.pathname.split("/").filter(Boolean).pop() || "run"}-${runId.slice(0, 8)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
open.onclick = () => file.click();
file.onchange = async () => {
  const chosen = file.files[0];
  if (!chosen) return;
  if (chosen.size > MAX_FILE) return note(`This file has ${chosen.size} bytes; at most ${MAX_FILE} are read. `);
  const text = await chosen.text();
  file.value = "";
  trigger("upload", { text });
};

new ResizeObserver(([entry]) => { // another width: other line breaks, other heights
  if (entry.contentRect.width === width || at < 0) return;
  width = entry.contentRect.width;
  height = 0;
  steady();
}).observe(picture);

watch("value", read);
read();
tie();
