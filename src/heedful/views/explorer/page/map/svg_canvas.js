// A canvas context that writes SVG: images become image elements, and text remains text.

const signOf = (/** @type {string} */ control) =>
  String.fromCharCode(0x2400 + control.charCodeAt(0));

/** Escape a text for XML, which has no control characters: these become visible signs. @param {string} text */
const safe = (text) =>
  text
    // biome-ignore lint/suspicious/noControlCharactersInRegex: these are replaced
    .replace(/[\0-\x1f\ufffe\uffff]/g, (c) => (c < " " ? signOf(c) : "\ufffd"))
    .replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

const MOST_CELLS = 1 << 14; // cells as rectangles; more are an image

/** The members of a canvas context that the painter of the map uses. */
export class SvgPen {
  /** @param {{line: string, panel: string}} ink the colours of masked cells */
  constructor(ink) {
    this.out = /** @type {string[]} */ ([]);
    this.ink = ink;
    this.stack = /** @type {any[]} */ ([]);
    this.clips = 0;
    this.open = 0; // clip groups that `restore` closes
    this.path = "";
    this.box = [0, 0, 0, 0];
    this.transform = "";
    this.fillStyle = /** @type {any} */ ("#000");
    this.strokeStyle = "#000";
    this.lineWidth = 1;
    this.globalAlpha = 1;
    this.font = "12px sans-serif";
    this.textAlign = "left";
    this.textBaseline = "alphabetic";
    this.imageSmoothingEnabled = false;
  }

  setTransform() {}
  clearRect() {}

  save() {
    this.stack.push({ transform: this.transform, open: this.open });
    this.open = 0;
  }

  restore() {
    this.out.push("</g>".repeat(this.open));
    Object.assign(this, this.stack.pop());
  }

  translate(/** @type {number} */ x, /** @type {number} */ y) {
    this.transform += `translate(${rounded(x)} ${rounded(y)}) `;
  }

  rotate(/** @type {number} */ angle) {
    this.transform += `rotate(${rounded((angle * 180) / Math.PI)}) `;
  }

  beginPath() {
    this.path = "";
  }

  /** @param {number} x @param {number} y @param {number} w @param {number} h */
  rect(x, y, w, h) {
    this.box = [x, y, w, h];
  }

  clip() {
    const [x, y, w, h] = this.box.map(rounded);
    const id = `clip${++this.clips}`;
    this.out.push(
      `<clipPath id="${id}"><rect x="${x}" y="${y}" width="${w}" height="${h}"/></clipPath><g clip-path="url(#${id})">`,
    );
    this.open++;
  }

  moveTo(/** @type {number} */ x, /** @type {number} */ y) {
    this.path += `M${rounded(x)} ${rounded(y)}`;
  }

  lineTo(/** @type {number} */ x, /** @type {number} */ y) {
    this.path += `L${rounded(x)} ${rounded(y)}`;
  }

  /** @param {number} x @param {number} y @param {number} w @param {number} h */
  roundRect(x, y, w, h) {
    this.path += `M${rounded(x)} ${rounded(y)}h${rounded(w)}v${rounded(h)}h${rounded(-w)}z`;
  }

  bezierCurveTo(/** @type {number[]} */ ...points) {
    this.path += `C${points.map(rounded).join(" ")}`;
  }

  stroke() {
    this._put(
      `<path d="${this.path}" fill="none" stroke="${this.strokeStyle}" stroke-width="${rounded(this.lineWidth)}"`,
    );
  }

  fill() {
    this._put(`<path d="${this.path}" fill="${this._colour()}"`);
  }

  /** @param {number} x @param {number} y @param {number} w @param {number} h */
  fillRect(x, y, w, h) {
    this._put(
      `<rect x="${rounded(x)}" y="${rounded(y)}" width="${rounded(w)}" height="${rounded(h)}" fill="${this._colour()}"`,
    );
  }

  /** @param {number} x @param {number} y @param {number} w @param {number} h */
  strokeRect(x, y, w, h) {
    this._put(
      `<rect x="${rounded(x)}" y="${rounded(y)}" width="${rounded(w)}" height="${rounded(h)}" fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}"`,
    );
  }

  fillText(/** @type {string} */ text, /** @type {number} */ x, /** @type {number} */ y) {
    const anchor =
      /** @type {Record<string, string>} */ ({ right: "end", center: "middle" })[this.textAlign] ??
      "start";
    const size = Number.parseFloat(this.font.match(/[\d.]+px/)?.[0] ?? "12");
    const down = this.textBaseline === "middle" ? size * 0.35 : 0;
    const bold = /bold|600/.test(this.font) ? ' font-weight="600"' : "";
    this._put(
      `<text x="${rounded(x)}" y="${rounded(y + down)}" font-size="${size}"${bold} text-anchor="${anchor}" fill="${this._colour()}"`,
      `${safe(text)}</text>`,
    );
  }

  /** Draw a part of an image, without smoothing. */
  drawImage(/** @type {any} */ image, /** @type {number[]} */ ...[sx, sy, sw, sh, x, y, w, h]) {
    const [left, top] = [Math.floor(sx), Math.floor(sy)];
    const part = document.createElement("canvas");
    [part.width, part.height] = [
      Math.max(1, Math.ceil(sx + sw) - left),
      Math.max(1, Math.ceil(sy + sh) - top),
    ];
    part.getContext("2d")?.drawImage(image, -left, -top);
    const [across, down] = [w / sw, h / sh];
    if (part.width * part.height <= MOST_CELLS) {
      const corner = [x - (sx - left) * across, y - (sy - top) * down];
      return this._drawCells(part, corner, across, down);
    }
    this._put(
      `<image x="${rounded(x - (sx - left) * across)}" y="${rounded(y - (sy - top) * down)}" width="${rounded(part.width * across)}" height="${rounded(part.height * down)}" preserveAspectRatio="none" image-rendering="pixelated" href="${part.toDataURL()}"`,
    );
  }

  /** Draw the pixels of a canvas as rectangles. @param {HTMLCanvasElement} part @param {number[]} corner @param {number} wide @param {number} high of a pixel */
  _drawCells(part, [x, y], wide, high) {
    const { width, height } = part;
    const context = /** @type {CanvasRenderingContext2D} */ (part.getContext("2d"));
    const { data } = context.getImageData(0, 0, width, height);
    this.out.push('<g shape-rendering="crispEdges">');
    for (let i = 0; i < width * height; i++) {
      if (!data[4 * i + 3]) continue; // masked
      this.fillStyle = `#${[0, 1, 2].map((n) => data[4 * i + n].toString(16).padStart(2, "0")).join("")}`;
      this.fillRect(x + (i % width) * wide, y + Math.floor(i / width) * high, wide, high);
    }
    this.out.push("</g>");
  }

  _colour() {
    return typeof this.fillStyle === "string" ? this.fillStyle : "url(#masked)";
  }

  _put(/** @type {string} */ start, inner = "") {
    const transform = this.transform ? ` transform="${this.transform.trim()}"` : "";
    const alpha = this.globalAlpha < 1 ? ` opacity="${this.globalAlpha}"` : "";
    this.out.push(`${start}${transform}${alpha}${inner ? `>${inner}` : "/>"}`);
  }

  /** The SVG document. */
  text(/** @type {number} */ width, /** @type {number} */ height) {
    const { panel, line } = this.ink;
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif">
<defs><pattern id="masked" width="5" height="5" patternUnits="userSpaceOnUse"><rect width="5" height="5" fill="${panel}"/><path d="M-1 6L6 -1" stroke="${line}"/></pattern></defs>
${this.out.join("\n")}
</svg>`;
  }
}

const rounded = (/** @type {number} */ value) => String(Math.round(value * 1000) / 1000);
