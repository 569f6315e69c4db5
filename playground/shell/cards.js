// Cards in an order. Each list `ol[data-order=NAME]` mirrors the text box of the parameter NAME: here beside the box, and
// in frames, where a move also runs the lab again. Drag with mouse or finger, or focus a card and use the arrow keys.
const list = element.querySelector("ol"), names = new Map(JSON.parse(props.cards));
list.dataset.order = props.parameter;
list.setAttribute("aria-label", `${props.title}: cards in their order`);

const page = (window.dpCards ??= makePage());
page.start();
let shown = null;
draw();
const timer = setInterval(() => (element.isConnected ? draw() : clearInterval(timer)), 250); // presets fill the box silently

function draw() {
  const box = page.box(props.parameter);
  list.hidden = !box; // a teacher can hide a control, and then its cards too
  if (!box || box.value === shown || page.isDragging()) return;
  shown = box.value;
  const letters = read(shown), had = document.activeElement?.closest?.("ol") === list ? document.activeElement.dataset.letter : null;
  list.replaceChildren(...letters.map(card));
  if (had) list.querySelector(`[data-letter="${had}"]`)?.focus();
}

function card(letter) {
  const item = document.createElement("li"), sign = document.createElement("b");
  sign.textContent = letter;
  item.append(sign, ` ${names.get(letter) ?? ""}`);
  item.className = "card";
  item.tabIndex = 0;
  item.dataset.letter = letter;
  return item;
}

function read(text) { // letters, or names between commas; whatever is no knob is left to the lab, which says so
  const byName = new Map([...names].map(([letter, name]) => [name, letter]));
  const plain = text.trim().toLowerCase().replaceAll("_", "-");
  const parts = text.includes(",") || byName.has(plain) ? text.split(",") : [...text.replaceAll(" ", "")];
  const letters = parts.map((part) => part.trim()).map((part) => (names.has(part.toUpperCase()) ? part.toUpperCase() : byName.get(part.toLowerCase().replaceAll("_", "-"))));
  return letters.every(Boolean) && new Set(letters).size === letters.length ? letters : [];
}

function makePage() { // one for all lists of a page
  let dragged = null, from = null, runSoon = null, back = null, isOn = false;
  const said = document.createElement("div");
  said.style.cssText = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)";
  said.setAttribute("role", "status");

  const box = (name) => document.querySelector(`#param-${CSS.escape(name)} :is(input, textarea)`);
  const lists = (target) => target.closest?.("ol[data-order] > li[data-letter]");
  const letters = (items) => [...items.children].map((item) => item.dataset.letter).filter(Boolean);

  function write(items, item) {
    const input = box(items.dataset.order), order = letters(items);
    if (!input) return;
    if (!input.value.includes(",")) order.push(...[...input.value.toUpperCase()].filter((letter) => /[A-Z]/.test(letter) && !order.includes(letter))); // in frames, knobs that are off have no card
    input.value = order.join("");
    input.dispatchEvent(new Event("input", { bubbles: true }));
    said.textContent = `${item.dataset.letter}, place ${order.indexOf(item.dataset.letter) + 1} of ${items.children.length}`;
    if (!items.closest(".picture")) return;
    const isFocused = document.activeElement === item, name = items.dataset.order, letter = item.dataset.letter;
    clearTimeout(runSoon);
    runSoon = setTimeout(() => { // several moves, one run
      const at = document.querySelector("#player .seek")?.value;
      document.querySelector("#run:not([disabled])")?.click();
      back = { items, at, name, letter, isFocused };
    }, 500);
  }

  function onKey(event) {
    const item = lists(event.target);
    if (!item || event.ctrlKey || event.metaKey || event.altKey) return;
    const items = item.parentElement;
    const before = { ArrowLeft: item.previousElementSibling, ArrowUp: item.previousElementSibling, Home: items.firstElementChild };
    const after = { ArrowRight: item.nextElementSibling, ArrowDown: item.nextElementSibling, End: items.lastElementChild };
    if (!(event.key in before) && !(event.key in after)) return;
    event.preventDefault(); // the player does not step, the page does not scroll
    const other = before[event.key] ?? after[event.key];
    if (!other || other === item) return;
    other[event.key in before ? "before" : "after"](item);
    item.focus();
    write(items, item);
  }

  function onDown(event) {
    const item = event.button === 0 && lists(event.target);
    if (item) [dragged, from] = [item, [event.clientX, event.clientY, letters(item.parentElement).join("")]];
  }
  function onMove(event) {
    if (!dragged) return;
    if (!dragged.classList.contains("dragged") && Math.hypot(event.clientX - from[0], event.clientY - from[1]) < 6) return;
    dragged.classList.add("dragged");
    event.preventDefault();
    const over = lists(document.elementFromPoint(event.clientX, event.clientY) ?? document.body);
    if (!over || over === dragged || over.parentElement !== dragged.parentElement) return;
    const isBehind = dragged.compareDocumentPosition(over) & Node.DOCUMENT_POSITION_FOLLOWING;
    over[isBehind ? "after" : "before"](dragged);
  }
  function onUp() {
    const item = dragged;
    dragged = null;
    item?.classList.remove("dragged");
    if (item && letters(item.parentElement).join("") !== from[2]) write(item.parentElement, item);
  }
  function show(seek, at) {
    seek.value = at;
    seek.dispatchEvent(new Event("input", { bubbles: true }));
  }

  function onEnd() { // the run that a card started is over: back to the step that was shown, and to the card
    if (!back || back.items.isConnected || document.querySelector("#run[disabled]")) return;
    const { at, name, letter, isFocused } = back, seek = document.querySelector("#player .seek");
    back = null;
    if (seek && Number(at) <= Number(seek.max)) show(seek, at);
    if (!isFocused || document.activeElement !== document.body) return;
    document.querySelector(`.picture ol[data-order="${name}"] > [data-letter="${letter}"]`)?.focus({ preventScroll: true });
  }

  return {
    box,
    isDragging: () => dragged !== null,
    start() {
      if (isOn) return;
      isOn = true;
      document.body.append(said);
      document.addEventListener("keydown", onKey, true); // before the player's own
      document.addEventListener("pointerdown", onDown);
      document.addEventListener("pointermove", onMove, { passive: false });
      document.addEventListener("pointerup", onUp);
      document.addEventListener("pointercancel", onUp);
      setInterval(onEnd, 150);
    },
  };
}
