"""The style sheet of the report: light and dark, wide tables on a desk, cards on a phone."""

_LIGHT = (
    "--page:#f4f5f7;--card:#ffffff;--ink:#1a1c1f;--quiet:#59606b;--line:#d5d9df;--link:#00578a;"
    "--yes:#00694b;--no:#a03400;--open:#59606b"
)
_DARK = (
    "--page:#101215;--card:#1a1d22;--ink:#e7e9ec;--quiet:#a3abb6;--line:#363c45;--link:#86c9f5;"
    "--yes:#2fc49a;--no:#ffab80;--open:#a3abb6"
)

STYLE = f"""
:root{{{_LIGHT}}}
@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--page);color:var(--ink);
 font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}}
main{{max-width:72rem;margin:0 auto;padding:1.5rem 1rem 4rem}}
h1{{font-size:1.8rem;line-height:1.2;margin:.5rem 0 1rem}}
h2{{font-size:1.3rem;margin:2.5rem 0 .75rem;border-bottom:1px solid var(--line)}}
h3{{font-size:1.05rem;margin:1.5rem 0 .5rem}}
p{{max-width:46rem}}
a{{color:var(--link)}}
.wide{{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:6px}}
table{{border-collapse:collapse;width:100%;font-size:.85rem;
 font-variant-numeric:tabular-nums;overflow-wrap:normal}}
th,td{{text-align:left;vertical-align:top;padding:.4rem .6rem}}
th{{color:var(--quiet);font-weight:600;border-bottom:1px solid var(--line)}}
td.first{{font-weight:500;min-width:12rem}}
td[data-name="why"]{{min-width:15rem}}
td[data-name^="ours"]{{min-width:11rem}}
td[data-name^="difference"]{{white-space:nowrap}}
tr:has(td.first) td{{border-top:1px solid var(--line)}}
td b{{font-weight:600;white-space:nowrap}}
b.reproduced{{color:var(--yes)}}
b.not-reproduced{{color:var(--no)}} b.direction-only{{color:var(--no)}}
b.not-testable-here{{color:var(--open);font-weight:400}}
details{{margin:.75rem 0}}
summary{{cursor:pointer;color:var(--link)}}
figure{{margin:1.25rem 0}}
img{{display:block;width:100%;height:auto;background:#ffffff;border:1px solid var(--line);
 border-radius:6px;padding:.5rem}}
figcaption{{font-size:.85rem;color:var(--quiet)}}
.curves .plot{{overflow-x:auto;background:#ffffff;border:1px solid var(--line);border-radius:6px}}
.curves svg{{display:block;width:100%;height:auto;font:13px system-ui,sans-serif;fill:#1a1c1f;
 touch-action:pan-y;user-select:none;cursor:crosshair}}
.curves polyline{{fill:none;stroke-linejoin:round}}
.curves .run{{stroke-width:1;opacity:.35}}
.curves .mean{{stroke-width:3}}
.curves .grid{{stroke:#e6e6e6}}
.curves .arm{{font-weight:600}}
.curves .controls{{display:flex;flex-wrap:wrap;gap:.5rem 1rem;align-items:center;margin:.75rem 0}}
.curves select{{max-width:100%}}
.curves fieldset{{display:flex;flex-wrap:wrap;gap:.25rem 1rem;border:1px solid var(--line);
 border-radius:6px;font-size:.85rem;min-width:0}}
.curves .swatch{{display:inline-block;width:.8em;height:.8em;border-radius:2px;
 outline:1px solid #ffffff}}
.curves .readout{{font-size:.85rem;color:var(--quiet);min-height:1.5em;margin:.4rem 0}}
@media(max-width:44rem){{
 thead{{display:none}}
 table,tbody,tr,td{{display:block;width:100%}}
 td{{padding:.1rem .75rem}}
 td:empty,td.none{{display:none}}
 tr{{padding:.35rem 0;border-top:1px solid var(--line)}}
 tr:has(td.first) td{{border-top:0}}
 tr:not(:has(td.first)){{border-top-style:dashed;margin-left:.75rem;width:auto}}
 td:not(.first)::before{{content:attr(data-name) ": ";color:var(--quiet)}}
 td[data-name]{{min-width:0;white-space:normal}}
 td b{{white-space:normal}}
}}
"""
