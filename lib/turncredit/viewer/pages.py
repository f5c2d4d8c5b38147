"""A file that shows views in any browser: self-contained, no script allowed, written whole."""

import base64
import hashlib
from pathlib import Path

from turncredit.storage import write_text
from turncredit.viewer.parts import OPENING
from turncredit.viewer.styles import PAGE_STYLE, STYLE
from turncredit.viewer.text import attribute

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">
<title>{title}</title><style>{style}</style></head>
<body><main{width}>{views}</main></body></html>
"""


def write_page(path: Path, *views: str, title: str = "Trajectories") -> None:
    """Write what `trajectory_html` and `group_html` returned into one HTML file, atomically.

    The page's security policy forbids scripts, requests, forms and every style but its own.
    Raises ValueError for no view, or for text that does not come from those two functions (it
    would not be escaped); OSError naming a `path` that cannot be written.
    """
    if not views:
        raise ValueError(f"{path}: no view to write")
    for index, shown in enumerate(views):
        if not shown.startswith(OPENING):
            raise ValueError(f"view {index} is not a trajectory or group view: {shown[:40]!r}")
    width = ' class="wide"' if any('<table class="group">' in shown for shown in views) else ""
    page = _PAGE.format(
        policy=_policy(),
        title=attribute(title),
        style=PAGE_STYLE,
        width=width,
        views="".join(views),
    )
    write_text(path, page)


def _policy() -> str:
    """Nothing may load or run; a style sheet counts only if its hash is one of ours."""
    hashes = " ".join(f"'sha256-{_hash(style)}'" for style in (STYLE, PAGE_STYLE))
    return f"default-src 'none'; style-src {hashes}; base-uri 'none'; form-action 'none'"


def _hash(style: str) -> str:
    return base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
