// The page that overture inspect writes, with @DATA@ where its numbers go.
#pragma once

namespace overture::clients {

inline constexpr char kInspectTemplate[] = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>overture inspect</title>
<style>
body{font:14px/1.45 system-ui,sans-serif;margin:1.5em;color:#1c2430;
 background:#fff;max-width:1200px}
h1{font-size:20px;margin:0 0 .3em}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 12px;margin:0}
dt{color:#667}dd{margin:0;overflow-wrap:anywhere}
details{margin:.8em 0;max-width:75em}
table{border-collapse:collapse;margin-top:1em}
th{position:sticky;top:0;background:#fff;cursor:pointer;text-align:right;
 padding:4px 8px;border-bottom:2px solid #345;white-space:nowrap}
th.left,td.left{text-align:left}
th[aria-sort=ascending]::after{content:" \25b2"}
th[aria-sort=descending]::after{content:" \25bc"}
td{padding:3px 8px;text-align:right;border-bottom:1px solid #e3e6ea;
 font-variant-numeric:tabular-nums}
canvas{image-rendering:pixelated}
td canvas{width:72px;height:72px;border:1px solid #ccd;cursor:zoom-in}
.bar{display:inline-flex;width:220px;height:14px;border:1px solid #ccd}
.legend span{display:inline-block;margin-right:1em}
.legend i{display:inline-block;width:12px;height:12px;margin-right:4px}
#big{position:fixed;right:16px;bottom:16px;background:#fff;padding:10px;
 border:1px solid #99a;box-shadow:0 4px 18px #0003;display:none}
#big canvas{width:448px;height:448px;border:1px solid #ccd;display:block}
#grid canvas{border:1px solid #ccd;cursor:pointer}
</style></head><body>
<h1>What the heads look at, and what was kept of it</h1>
<dl id="facts"></dl>
<details><summary>How to read this</summary>
<p>Each map has one row per sampled query, the first at the top, and one column
per stretch of keys, the first on the left; darker is more attention mass, from
1e-4 (white) to 1 on a logarithmic scale. Vertical lines are columns: keys that
every query looks at. Diagonals are distances: queries that look so far back.
The right edge of the triangle is the local band, its left edge the sinks.</p>
<p><b>Kept</b> is the share of its attention mass that a head computed under the
selector, exact, mean over the audited rows; <b>worst</b> is its lowest row. The
last layer computes one row only. <b>Density</b> is the layer's: computed pairs
over causal ones.</p>
<p>The bar says where the mass is: the first 30 keys, the last 100, the 64
columns and the 64 distances that other sampled rows look at most, elsewhere.
Where kept is low and the bar says <i>columns</i> or <i>slashes</i>, larger
vertical or slash sizes help; where it says <i>elsewhere</i>, attention is spread
or moves from row to row, and only blocks chosen for each query, or density,
help.</p></details>
<p class="legend" id="legend"></p>
<div id="grid"><p>Kept mass, layers down, heads across; click for the head's
row.</p></div>
<table><thead><tr id="head"></tr></thead><tbody id="body"></tbody></table>
<div id="big"><p id="bigText"></p><canvas></canvas><p id="bigAt"></p></div>
<script type="application/json" id="data">@DATA@</script>
<script>
'use strict';
const D = JSON.parse(document.getElementById('data').textContent);
const $ = id => document.getElementById(id);
const make = (name, parent, text) => {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  parent.appendChild(e);
  return e;
};
document.title = 'overture inspect: ' + D.model;
const pct = v => (100 * v).toFixed(1) + '%';
for (const [name, value] of [
    ['model', D.model + ', ' + D.layers + ' layers of ' + D.heads + ' heads'],
    ['prompt', D.prompt + ', ' + D.tokens + ' tokens'],
    ['selector', D.policy], ['computed on', D.backend],
    ['density', pct(D.density)], ['kept mass', pct(D.kept)],
    ['time', 'choosing ' + D.selectorSeconds.toFixed(3) + ' s, attention ' +
     D.attentionSeconds.toFixed(3) + ' s']]) {
  make('dt', $('facts'), name);
  make('dd', $('facts'), value);
}
const SHARES = [['sinks', '#1b6ca8'], ['local', '#5fb3b3'],
                ['columns', '#e0a030'], ['slashes', '#c0504d'],
                ['elsewhere', '#a9afb8']];
for (const [name, color] of SHARES) {
  const item = make('span', $('legend'));
  make('i', item).style.background = color;
  item.append(name);
}
// Green where all is kept, over yellow to red.
const keptColor = v => 'hsl(' + 120 * Math.max(0, Math.min(1, v)) ** 2 +
                       ' 65% 48%)';
const bytesOf = h => Uint8Array.from(atob(h.map), c => c.charCodeAt(0));
function drawMap(canvas, h) {
  const bytes = bytesOf(h);
  canvas.width = D.keys.length;
  canvas.height = D.rows.length;
  const context = canvas.getContext('2d');
  const image = context.createImageData(canvas.width, canvas.height);
  for (let r = 0; r < D.rows.length; ++r) {
    for (let k = 0; k < D.keys.length; ++k) {
      const i = r * D.keys.length + k;
      const level = bytes[i] / 255;
      const future = D.keys[k] > D.rows[r];
      image.data[4 * i] = future ? 238 : 255 - 235 * level;
      image.data[4 * i + 1] = future ? 240 : 255 - 215 * level;
      image.data[4 * i + 2] = future ? 243 : 255 - 130 * level;
      image.data[4 * i + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
}
let shown = null;
function showBig(h) {
  shown = h;
  $('big').style.display = 'block';
  $('bigText').textContent = 'layer ' + h.layer + ', head ' + h.head +
      ': kept ' + pct(h.kept) + '; click to close';
  $('bigAt').textContent = '';
  drawMap($('big').querySelector('canvas'), h);
}
$('big').onclick = () => { $('big').style.display = 'none'; };
$('big').querySelector('canvas').onmousemove = event => {
  const box = event.target.getBoundingClientRect();
  const at = (begin, size, count) => Math.max(0, Math.min(
      count - 1, Math.floor((begin / size) * count)));
  const k = at(event.clientX - box.left, box.width, D.keys.length);
  const r = at(event.clientY - box.top, box.height, D.rows.length);
  const level = bytesOf(shown)[r * D.keys.length + k];
  const end = k + 1 < D.keys.length ? D.keys[k + 1] : D.tokens;
  $('bigAt').textContent = 'query ' + D.rows[r] + ', keys ' + D.keys[k] +
      ' to ' + (end - 1) + ': ' +
      (level === 0 ? 'below 1e-4' : pct(10 ** (4 * (level / 255 - 1))));
};
const COLUMNS = [['layer', h => h.layer], ['head', h => h.head],
                 ['map', null], ['density', h => h.density],
                 ['kept', h => h.kept], ['worst', h => h.worst],
                 ['where its mass is', null]].concat(
    SHARES.map(([name]) => [name, h => h[name]]));
const rowOf = new Map();
for (const h of D.list) {
  const row = make('tr', $('body'));
  rowOf.set(h, row);
  for (const [name, value] of COLUMNS) {
    const cell = make('td', row);
    if (name === 'map') {
      const canvas = make('canvas', cell);
      drawMap(canvas, h);
      canvas.onclick = () => showBig(h);
    } else if (value === null) {
      const bar = make('div', cell);
      bar.className = 'bar';
      for (const [share, color] of SHARES) {
        const part = make('div', bar);
        part.style.background = color;
        part.style.width = pct(h[share]);
        part.title = share + ' ' + pct(h[share]);
      }
    } else {
      cell.textContent = name === 'layer' || name === 'head' ?
          value(h) : pct(value(h));
      if (name === 'kept') {
        cell.style.boxShadow = 'inset 5px 0 ' + keptColor(h.kept);
      }
    }
  }
}
let direction = 1;
COLUMNS.forEach(([name, value]) => {
  const cell = make('th', $('head'), name);
  if (value === null) return;
  cell.onclick = () => {
    direction = cell.getAttribute('aria-sort') === 'ascending' ? -1 : 1;
    for (const other of $('head').children) other.removeAttribute('aria-sort');
    cell.setAttribute('aria-sort', direction > 0 ? 'ascending' : 'descending');
    const sorted = [...D.list].sort((a, b) =>
        direction * (value(a) - value(b)) || a.layer - b.layer ||
        a.head - b.head);
    $('body').append(...sorted.map(h => rowOf.get(h)));
  };
});
const size = 14;
const grid = make('canvas', $('grid'));
grid.width = size * D.heads;
grid.height = size * D.layers;
const context = grid.getContext('2d');
for (const h of D.list) {
  context.fillStyle = keptColor(h.kept);
  context.fillRect(h.head * size, h.layer * size, size - 1, size - 1);
}
const headAt = event => {
  const box = grid.getBoundingClientRect();
  return D.list[Math.floor((event.clientY - box.top) / size) * D.heads +
                Math.floor((event.clientX - box.left) / size)];
};
grid.onmousemove = event => {
  const h = headAt(event);
  if (h) grid.title = 'layer ' + h.layer + ', head ' + h.head + ': kept ' +
      pct(h.kept);
};
grid.onclick = event => {
  const h = headAt(event);
  if (!h) return;
  rowOf.get(h).scrollIntoView({block: 'center'});
  showBig(h);
};
</script></body></html>
)html";

}  // namespace overture::clients
