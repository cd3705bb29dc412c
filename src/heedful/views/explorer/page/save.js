// What is shown, as a file: PNG, SVG with text as text, or the cells in view as CSV.

/** @param {any} painter @param {"png" | "svg" | "csv"} kind @param {any} [source] */
export async function saved(painter, kind, source) {
  const { state } = painter;
  const name = `${state.call.value.name || "map"}-head-${state.head.value}`;
  if (kind === "png") {
    const whole = document.createElement("canvas");
    [whole.width, whole.height] = [painter.canvas.width, painter.canvas.height];
    const context = /** @type {CanvasRenderingContext2D} */ (whole.getContext("2d"));
    context.fillStyle = painter.ink.ground;
    context.fillRect(0, 0, whole.width, whole.height);
    context.drawImage(painter.canvas, 0, 0);
    whole.toBlob((blob) => blob && given(blob, `${name}.png`));
  } else if (kind === "svg")
    given(new Blob([svg(painter)], { type: "image/svg+xml" }), `${name}.svg`);
  else given(new Blob([await csv(painter, source)], { type: "text/csv" }), `${name}.csv`);
}

function given(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const safe = (text) =>
  text.replace(
    /[&<>"]/g,
    (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c] ?? c,
  );

/** The map as an image, its labels as text: a canvas that writes them down instead of painting. */
function svg(painter) {
  const { canvas, state, tokens, ink } = painter;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const place = painter.place;
  const [, N, M] = state.call.value.shape;
  const labels = [];
  const every = Math.max(1, Math.ceil(13 / place.scale));
  const text = (axis, at) =>
    safe(every > 1 ? String(at) : `${tokens.label(state.where.value, axis, at)} ${at}`);
  for (
    let n = Math.ceil(place.y / every) * every;
    n < Math.min(N, place.y + place.room[1] / place.scale);
    n += every
  )
    labels.push(
      `<text x="89" y="${84 + (n + 0.5 - place.y) * place.scale + 4}" text-anchor="end">${text("queries", n)}</text>`,
    );
  for (
    let m = Math.ceil(place.x / every) * every;
    m < Math.min(M, place.x + place.room[0] / place.scale);
    m += every
  ) {
    const x = 96 + (m + 0.5 - place.x) * place.scale + 4;
    labels.push(`<text transform="translate(${x} 77) rotate(-90)">${text("keys", m)}</text>`);
  }
  const ratio = canvas.width / width;
  const part = document.createElement("canvas");
  [part.width, part.height] = [canvas.width - 96 * ratio, canvas.height - 84 * ratio];
  part
    .getContext("2d")
    ?.drawImage(
      canvas,
      96 * ratio,
      84 * ratio,
      part.width,
      part.height,
      0,
      0,
      part.width,
      part.height,
    );
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif" font-size="12" fill="${ink.text}">
<rect width="100%" height="100%" fill="${ink.ground}"/><image x="96" y="84" width="${width - 96}" height="${height - 84}" href="${part.toDataURL()}"/>
${labels.join("\n")}</svg>`;
}

async function csv(painter, source) {
  const { state } = painter;
  const place = painter.place;
  const [, N, M] = state.call.value.shape;
  const span = (first, size, pixels) => [
    Math.max(0, Math.floor(first)),
    Math.min(size, Math.ceil(first + pixels / place.scale)),
  ];
  const [q, k] = [span(place.y, N, place.room[1]), span(place.x, M, place.room[0])];
  if ((q[1] - q[0]) * (k[1] - k[0]) > 1 << 20)
    return "zoom in: more than a million weights are in view\n";
  const { weights } = await source.ask("part", {
    call: state.where.value,
    head: state.head.value,
    queries: q.join("-"),
    keys: k.join("-"),
  });
  const lines = [["query", ...Array.from({ length: k[1] - k[0] }, (_, i) => k[0] + i)].join(",")];
  for (let n = q[0]; n < q[1]; n++) {
    const start = (n - q[0]) * (k[1] - k[0]);
    lines.push([n, ...weights.data.subarray(start, start + k[1] - k[0])].join(","));
  }
  return lines.join("\n") + "\n";
}
