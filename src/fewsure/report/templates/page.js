"use strict";
// Without this script the page is whole: it adds values under the pointer, switches for methods, and sorting.

const off = new Set();

function showOrHide() {
  for (const part of document.querySelectorAll("[data-of]")) {
    part.classList.toggle("off", part.dataset.of.split(" ").some((owner) => off.has(owner)));
  }
}

for (const entry of document.querySelectorAll("[data-switch]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("aria-pressed", "true");
  button.append(...entry.childNodes);
  button.addEventListener("click", () => {
    const owner = entry.dataset.switch;
    if (!off.delete(owner)) off.add(owner);
    button.setAttribute("aria-pressed", String(!off.has(owner)));
    showOrHide();
  });
  entry.append(button);
}

function sortRows(table, column, direction) {
  const body = table.tBodies[0];
  const key = (row) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
  };
  const compare = (a, b) => {
    const [one, two] = [key(a), key(b)];
    const numbers = [one, two].map((value) => typeof value === "number");
    if (numbers[0] !== numbers[1]) return numbers[0] ? -1 : 1; // what has no number comes last
    return direction * (numbers[0] ? one - two : one.localeCompare(two));
  };
  body.append(...Array.from(body.rows).sort(compare));
}

for (const table of document.querySelectorAll("table.scores")) {
  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => {
      const rising = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      sortRows(table, column, rising ? 1 : -1);
    });
    head.append(button);
  });
}

const tip = document.createElement("div");
tip.className = "tip";
tip.setAttribute("role", "status");
tip.hidden = true;
document.body.append(tip);

for (const figure of document.querySelectorAll("figure[data-points]")) {
  const points = JSON.parse(figure.dataset.points);
  const picture = figure.querySelector("svg");
  const ring = document.createElementNS(picture.namespaceURI, "circle");
  ring.setAttribute("r", "5");
  ring.setAttribute("class", "ring");
  const leave = () => {
    tip.hidden = true;
    ring.remove();
  };
  const say = (event) => {
    const box = picture.getBoundingClientRect();
    const scale = picture.viewBox.baseVal.width / box.width;
    const at = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    let nearest = null;
    let least = Infinity;
    for (const point of points) {
      const distance = Math.hypot(point[0] - at[0], point[1] - at[1]);
      const hidden = point[2].split(" ").some((owner) => off.has(owner));
      if (distance < least && !hidden) [nearest, least] = [point, distance];
    }
    if (nearest === null) return leave();
    ring.setAttribute("cx", nearest[0]);
    ring.setAttribute("cy", nearest[1]);
    picture.append(ring);
    tip.textContent = nearest[3];
    tip.hidden = false;
    const x = box.left + nearest[0] / scale - tip.offsetWidth / 2;
    const y = box.top + nearest[1] / scale - tip.offsetHeight - 10;
    tip.style.left = `${Math.max(4, Math.min(x, document.documentElement.clientWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${y < 4 ? y + tip.offsetHeight + 20 : y}px`;
  };
  picture.addEventListener("pointermove", say);
  picture.addEventListener("pointerdown", say);
  picture.addEventListener("pointerleave", leave);
}
