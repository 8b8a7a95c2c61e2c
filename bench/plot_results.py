#!/usr/bin/env python3
"""SVG plots from the benches' JSON, with the standard library alone.

    bench/plot_results.py ttft OUT.svg FILE...       of prefill_bench --json
    bench/plot_results.py attention OUT.svg FILE...  of vertical_slash_gpu.py

ttft: what a prompt token costs, split by phase; of several runs of the same
kind the fastest. attention: FLOP rates over the length; a peer's rates may
come from a file of their own, rows with "plan", "tokens" and "tflops".
"""

import json
import math
import pathlib
import sys
from xml.sax.saxutils import escape

PHASES = [('linear', '#4e79a7'), ('attention', '#e15759'),
          ('selector_seconds', '#f2b134'), ('other', '#9c9c9c')]
PHASE_NAMES = {'linear': 'linear layers', 'selector_seconds': 'choosing'}
COLORS = ['#4e79a7', '#e15759', '#f28e2b', '#59a14f', '#9c755f']
INK, FAINT = '#222222', '#dddddd'


class Svg:
    def __init__(self, width, height):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
            f'height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="Helvetica, Arial, sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="white"/>']

    def text(self, x, y, text, anchor='middle', size=12, fill=INK, bold=False):
        weight = ' font-weight="bold"' if bold else ''
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" '
            f'font-size="{size}" fill="{fill}"{weight}>{escape(text)}</text>')

    def rect(self, x, y, width, height, fill):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
                          f'height="{height:.2f}" fill="{fill}"/>')

    def line(self, points, stroke, width=1, dash=''):
        path = ' '.join(f'{x:.1f},{y:.1f}' for x, y in points)
        dash = f' stroke-dasharray="{dash}"' if dash else ''
        self.parts.append(f'<polyline points="{path}" fill="none" '
                          f'stroke="{stroke}" stroke-width="{width}"{dash}/>')

    def circle(self, x, y, fill):
        self.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{fill}"/>')

    def write(self, path):
        pathlib.Path(path).write_text('\n'.join(self.parts + ['</svg>\n']))


def length_name(tokens):
    return (f'{tokens >> 20}M' if tokens >= 1 << 20 else
            f'{tokens >> 10}K')


def nice_step(limit, count):
    raw = limit / count
    power = 10 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw)


def y_axis(svg, left, right, top, bottom, limit, title):
    """Grid and labels; returns the function from a value to y."""
    def y(value):
        return bottom - value / limit * (bottom - top)
    step = nice_step(limit, 6)
    for i in range(int(limit / step) + 1):
        value = i * step
        svg.line([(left, y(value)), (right, y(value))], FAINT)
        svg.text(left - 6, y(value) + 4, f'{value:g}', 'end')
    svg.text(left - 40, top - 14, title, 'start')
    return y


def series_name(file, row):
    selector = row['selector'].replace('_', '-').replace('a-shape', 'A-shape')
    kinds = ['FP8 ' + part for part, mark in
             (('linears', 'weights=e4m3'), ('attention', 'attention=e4m3'))
             if mark in file['numerics']]
    return selector + (', ' + ' and '.join(kinds) if kinds else '')


def plot_ttft(out, files):
    best = {}
    for file in files:
        for row in file['rows']:
            key = row['tokens'], series_name(file, row)
            if key not in best or row['seconds'] < best[key]['seconds']:
                best[key] = row
    lengths = sorted({tokens for tokens, _ in best})
    names = sorted({name for _, name in best})

    def micros(row, phase):
        return max(0.0, row[phase]) / row['tokens'] * 1e6
    limit = 1.08 * max(row['seconds'] / row['tokens'] * 1e6
                       for row in best.values())
    bar, gap = 40, 44
    left, top, bottom = 64, 72, 330
    width = left + sum(gap + bar * sum((n, name) in best for name in names)
                       for n in lengths) + 20
    width = max(width, 640)
    svg = Svg(width, bottom + 60 + 18 * len(names))
    svg.text(left - 40, 24, 'Prefill of a Llama-3-8B shape on one H200, '
             'structured synthetic weights', 'start', 15, bold=True)
    y = y_axis(svg, left, width - 20, top, bottom, limit,
               'microseconds per prompt token; above the bars: seconds')
    for i, (phase, color) in enumerate(PHASES):
        x = width - 20 - 110 * (len(PHASES) - i)
        svg.rect(x, 44 - 10, 11, 11, color)
        svg.text(x + 16, 44, PHASE_NAMES.get(phase, phase), 'start')
    x = left + gap / 2
    for tokens in lengths:
        begin = x
        for i, name in enumerate(names):
            row = best.get((tokens, name))
            if row is None:
                continue
            base = 0.0
            for phase, color in PHASES:
                part = micros(row, phase)
                svg.rect(x + 3, y(base + part), bar - 6, y(base) -
                         y(base + part), color)
                base += part
            seconds = row['seconds']
            svg.text(x + bar / 2, y(base) - 5,
                     f'{seconds:.2f}' if seconds < 10 else f'{seconds:.1f}',
                     size=11)
            svg.text(x + bar / 2, bottom + 14, 'ABCDEFG'[i], size=11)
            x += bar
        svg.text((begin + x) / 2, bottom + 32, length_name(tokens), bold=True)
        x += gap
    for i, name in enumerate(names):
        densities = [f'{length_name(n)} {100 * best[n, name]["density"]:.3g}%'
                     for n in lengths if (n, name) in best]
        note = '' if name.startswith('dense') else (
            '; pairs computed: ' + ', '.join(densities))
        svg.text(left - 40, bottom + 58 + 18 * i,
                 f'{"ABCDEFG"[i]}  {name}{note}', 'start')
    svg.write(out)


def plot_attention(out, files):
    series = {}
    for file in files:
        for row in file['rows']:
            plan = row['plan']
            best = series.setdefault(plan, {})
            n = row['tokens']
            best[n] = max(best.get(n, 0), row['tflops'])
            if 'cudnn_tflops' in row:
                series.setdefault('cuDNN, dense', {})[n] = row['cudnn_tflops']
    names = {'dense': 'ours, dense',
             'vertical-slash': 'ours, vertical-slash, on what it computes'}
    width, left, right, top, bottom = 680, 64, 660, 72, 330
    svg = Svg(width, bottom + 44 + 18 * len(series))
    svg.text(left - 40, 24, 'Attention on one H200: 32 query and 8 KV heads of '
             '128, bf16, causal', 'start', 15, bold=True)
    lengths = sorted({n for rates in series.values() for n in rates})
    limit = 1.1 * max(max(rates.values()) for rates in series.values())
    y = y_axis(svg, left, right, top, bottom, limit, 'TFLOP/s')
    span = math.log2(lengths[-1] / lengths[0])

    def x(n):
        return left + 20 + math.log2(n / lengths[0]) / span * (
            right - left - 40)
    for n in lengths:
        svg.text(x(n), bottom + 18, length_name(n))
    svg.text((left + right) / 2, bottom + 36, 'tokens')
    for i, (plan, rates) in enumerate(series.items()):
        color = COLORS[i % len(COLORS)]
        points = [(x(n), y(rates[n])) for n in sorted(rates)]
        ours = plan in names
        svg.line(points, color, 2, '' if ours else '5 4')
        for px, py in points:
            svg.circle(px, py, color)
        key = bottom + 54 + 18 * i
        svg.line([(left - 40, key - 4), (left - 12, key - 4)], color, 2,
                 '' if ours else '5 4')
        svg.text(left - 4, key, names.get(plan, plan), 'start')
    svg.write(out)


def main():
    plots = {'ttft': plot_ttft, 'attention': plot_attention}
    if len(sys.argv) < 4 or sys.argv[1] not in plots:
        sys.exit(__doc__)
    plots[sys.argv[1]](sys.argv[2], [json.loads(pathlib.Path(p).read_text())
                                     for p in sys.argv[3:]])


if __name__ == '__main__':
    main()
