"""One style sheet for notebooks and files, in a light and a dark theme; no colour stands alone.

Blue and vermilion (Okabe and Ito) stay apart with every common colour vision; the sequential
shades differ in lightness.  Ink is black or white, whichever is easier to read on a shade.
"""

from turncredit.viewer.scales import MISSING

COLOURS = {"prompt": "#767676", "policy": "#0072B2", "environment": "#009E73"}
"""Edge of a block by author: question, policy, environment."""

LIGHT = {
    "page": "#f4f5f7", "card": "#ffffff", "ink": "#1a1c1f", "quiet": "#59606b", "line": "#d5d9df",
    "tint": "#f0f6f3", "prompt": COLOURS["prompt"], "policy": COLOURS["policy"],
    "environment": COLOURS["environment"],
    "e1": "#fff0dd", "e2": "#ffdfb9", "e3": "#fdc88e", "e4": "#fbab5c", "e5": "#f08c33",
    "e6": "#dc6f14", "e7": "#ad4c00", "e8": "#7a3200",
    "p1": "#dcecf8", "p2": "#b0d5f0", "p3": "#79b6e0", "p4": "#3a92ca", "p5": "#00578a",
    "n1": "#fde5d9", "n2": "#fbc6aa", "n3": "#f49d72", "n4": "#e07034", "n5": "#9c3c00",
}  # fmt: skip
DARK = {
    "page": "#101215", "card": "#1a1d22", "ink": "#e7e9ec", "quiet": "#a3abb6", "line": "#363c45",
    "tint": "#18241f", "prompt": "#8d949d", "policy": "#4aa8e0", "environment": "#2fc49a",
    "e1": "#30251a", "e2": "#47311b", "e3": "#60401d", "e4": "#7c501f", "e5": "#996021",
    "e6": "#cf8331", "e7": "#eaa04f", "e8": "#ffc585",
    "p1": "#18293a", "p2": "#1b3d5a", "p3": "#1e5379", "p4": "#256d9f", "p5": "#86c9f5",
    "n1": "#38231a", "n2": "#563021", "n3": "#783f25", "n4": "#9c5029", "n5": "#ffab80",
}  # fmt: skip
"""Every colour by name; the shades are named after their classes (`scales.Scale.colour`)."""

SHADES = tuple(name for name in LIGHT if name[1:].isdigit())


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, 0 .. 1 (WCAG 2.2).

    >>> luminance("#000000"), luminance("#ffffff")
    (0.0, 1.0)
    """
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 .. 21 (WCAG 2.2; text needs 4.5)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def shade_ink(shade: str) -> str:
    """Black or white, whichever is easier to read on `shade`."""
    return max("#111111", "#ffffff", key=lambda ink: contrast(ink, shade))


def _variables(theme: dict[str, str]) -> str:
    inks = {f"i{name}": shade_ink(theme[name]) for name in SHADES}
    return "".join(f"--{name}:{colour};" for name, colour in {**theme, **inks}.items())


_THEMES = f""".tc{{color-scheme:light;{_variables(LIGHT)}}}
@media (prefers-color-scheme:dark){{.tc{{color-scheme:dark;{_variables(DARK)}}}}}
[data-jp-theme-light="true"] .tc{{color-scheme:light;{_variables(LIGHT)}}}
[data-jp-theme-light="false"] .tc{{color-scheme:dark;{_variables(DARK)}}}
"""

_SHADES = "".join(
    f".tc .{name}{{background:var(--{name});color:var(--i{name})}}" for name in SHADES
)

_LAYOUT = f"""
.tc{{background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif;padding:.75rem;
border-radius:8px;text-align:left;overflow-wrap:anywhere}}
.tc .top{{display:flex;flex-wrap:wrap;gap:.2rem 1rem;align-items:baseline;margin:0 0 .5rem}}
.tc .name{{font-weight:600;unicode-bidi:isolate}}
.tc .facts{{display:flex;flex-wrap:wrap;gap:.1rem 1rem;margin:0;padding:0;width:auto;
font-size:.9em}}
.tc .facts div{{display:flex;gap:.35rem}}
.tc :is(dt,dd){{display:block;float:none;clear:none;width:auto;margin:0;padding:0}}
.tc dt{{color:var(--quiet);font-weight:400}}
.tc dd{{font-weight:600;unicode-bidi:isolate}}
.tc p{{margin:.5rem 0}}
.tc .quiet{{color:var(--quiet);font-weight:400}}
.tc .gone{{color:var(--quiet);font-weight:400;font-style:italic;border-bottom:1px dashed}}
.tc .card{{background:var(--card);border:1px solid var(--line);border-radius:6px;margin:.5rem 0;
padding:.15rem .6rem .5rem}}
.tc summary{{cursor:pointer;padding:.3rem 0;min-height:1.5rem}}
.tc summary:focus-visible,.tc .scroll:focus-visible{{outline:2px solid var(--policy);
outline-offset:2px;border-radius:3px}}
.tc .act{{font-weight:600;unicode-bidi:isolate}}
.tc .note{{color:var(--quiet);font-size:.88em;margin-left:.5rem}}
.tc .said{{font:13.5px/1.75 ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;
white-space:pre-wrap;overflow:hidden;margin:.15rem 0;padding:.2rem .2rem .2rem .7rem;
border-left:4px solid var(--policy)}}
.tc .asked{{border-left:4px double var(--prompt)}}
.tc .seen{{border-left:4px dotted var(--environment);background:var(--tint);
border-radius:0 4px 4px 0}}
.tc .observed{{margin:.35rem 0 0 1.1rem}}
.tc .observed summary{{font-size:.88em;color:var(--quiet);padding:.1rem 0}}
.tc .hid{{font:600 .72em/1 system-ui,sans-serif;border:1px solid;border-radius:3px;
padding:0 .2em;margin:0 .1em;unicode-bidi:isolate}}
.tc .s{{border-radius:3px;padding:.12em .18em;margin:0 -.04em;-webkit-box-decoration-break:clone;
box-decoration-break:clone}}
.tc .{MISSING}{{outline:1px dashed var(--quiet);outline-offset:-1px}}
.tc .n1,.tc .n2,.tc .n3,.tc .n4,.tc .n5{{text-decoration:underline dotted;
text-underline-offset:.25em}}
.tc .legend{{display:flex;flex-wrap:wrap;gap:.3rem 1rem;align-items:center;margin:.4rem 0;
font-size:.88em;color:var(--quiet)}}
.tc .bar{{display:inline-flex;border:1px solid var(--line);border-radius:3px;overflow:hidden}}
.tc .bar span{{padding:.1rem .45rem;min-width:1.1rem;text-align:center;
text-decoration:none}}
.tc .edge{{padding-left:.45rem}}
.tc .edge.policy{{border-left:4px solid var(--policy)}}
.tc .edge.environment{{border-left:4px dotted var(--environment)}}
.tc .edge.prompt{{border-left:4px double var(--prompt)}}
.tc .numbers{{font-size:.88em;color:var(--quiet)}}
.tc .numbers[open]~* .s[title]::after{{content:attr(title);font:600 .72em system-ui,sans-serif;
vertical-align:sub;margin-left:.25em;white-space:nowrap;unicode-bidi:isolate}}
"""

_GROUP = """
.tc .scroll{overflow-x:auto;margin:.5rem 0}
.tc .group{border-collapse:separate;border-spacing:.5rem 0;margin:0 -.5rem;color:inherit;
width:max-content;
min-width:100%;table-layout:auto;font-size:1em;border:0}
.tc .group :is(th,td){text-align:left;vertical-align:top;font-weight:400;white-space:normal;
max-width:none;border:0;padding:.3rem .6rem .5rem;background:var(--card);line-height:1.5;
font-size:15px}
.tc .group :is(th,td).cell{min-width:15.5rem;width:20rem;max-width:26rem;
border:solid var(--line);border-width:0 1px}
.tc .group thead th.cell{border-width:1px 1px 0;border-radius:6px 6px 0 0}
.tc .group tbody tr:last-child td.cell{border-width:0 1px 1px;border-radius:0 0 6px 6px}
.tc .group tbody td.cell{border-top:1px solid var(--line)}
.tc .group th.side{position:sticky;left:0;background:var(--page);padding:.45rem .35rem;
color:var(--quiet);font-size:.88em;z-index:1}
.tc .group thead{border:0;vertical-align:inherit}
.tc .group tr{vertical-align:inherit;text-align:inherit;line-height:inherit;padding:0;border:0;
max-width:none}
.tc .group tbody tr:nth-child(n){background:none}
.tc .group .facts{flex-direction:column;gap:0}
.tc .group .facts dt{min-width:5.2rem}
@media (max-width:40rem){.tc{padding:.5rem}.tc .group :is(th,td).cell{width:72vw;min-width:0}
.tc .observed{margin-left:.4rem}.tc .scroll{scroll-snap-type:x proximity;scroll-padding-left:2.2rem}
.tc .group :is(th,td).cell{scroll-snap-align:start}}
"""

STYLE = _THEMES + _SHADES + _LAYOUT + _GROUP

PAGE_STYLE = f"""
:root{{color-scheme:light dark}}
body{{margin:0;background:{LIGHT["page"]}}}
main{{max-width:62rem;margin:0 auto}}
main.wide{{max-width:none}}
@media (prefers-color-scheme:dark){{body{{background:{DARK["page"]}}}}}
@media print{{.tc{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}}}
"""
