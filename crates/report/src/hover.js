// Values under the pointer. The page says all it has to say without this.
for (const svg of document.querySelectorAll("svg.curves")) {
  const curves = JSON.parse(svg.dataset.curves);
  const cursor = svg.querySelector(".cursor");
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
  document.body.append(tip);

  const nearest = (points, x) =>
    points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * width;
    const found = curves.filter((curve) => curve.points.length).map((curve) => [curve, nearest(curve.points, x)]);
    if (!found.length) return;
    const at = found[0][1][0];
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, at);
    cursor.setAttribute("y2", height - 38);
    cursor.style.visibility = "visible";
    tip.replaceChildren(...found.map(([curve, [, step, loss]]) => {
      const line = document.createElement("div");
      const name = Object.assign(document.createElement("b"), { textContent: curve.name });
      name.style.color = curve.color;
      line.append(name, ` ${loss.toFixed(4)} at ${svg.dataset.at} ${step}`);
      return line;
    }));
    tip.hidden = false;
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    tip.style.left = `${left}px`;
    tip.style.top = `${event.clientY + 14}px`;
  });
  svg.addEventListener("pointerleave", () => {
    cursor.style.visibility = "hidden";
    tip.hidden = true;
  });
}
