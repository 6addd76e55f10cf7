"""The page: data, code and style in one file that needs nothing else and may ask for nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Any

from gossamer.comparison.run import REPORT
from gossamer.files import write_text
from gossamer.report.data import Report, collect

ASSETS = files("gossamer.report") / "assets"
STYLE = "report.css"
SCRIPTS = (  # in the order they need each other
    "state.js",
    "data.js",
    "parts.js",
    "pattern.js",
    "overview.js",
    "curves.js",
    "circuit.js",
    "explorer.js",
    "grid.js",
    "sparsity.js",
    "main.js",
)


def write_report(run: Path) -> Path:
    """Write RUN/report.html from the run's files; where it is."""
    path = run / REPORT
    write_text(path, render(collect(run)))
    return path


def render(report: Report) -> str:
    style = asset(STYLE)
    library = asset("d3.min.js")
    code = "\n".join(asset(name) for name in SCRIPTS)
    parts = {
        "policy": policy(scripts=(library, code), style=style),
        "style": style,
        "data": as_json(report.data),
        "files": "\n".join(stored(name, content) for name, content in report.files.items()),
        "licence": asset("d3.LICENSE"),
        "library": library,
        "code": code,
    }
    # In one sweep: what is put in is not looked at again, whatever it says.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], asset("template.html"))


def asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def policy(*, scripts: tuple[str, ...], style: str) -> str:
    """No network, and no code but ours: scripts and style are allowed by their hashes."""
    code = " ".join(fingerprint(script) for script in scripts)
    return (
        f"default-src 'none'; script-src {code}; style-src {fingerprint(style)}; img-src blob: data:; "
        "base-uri 'none'; form-action 'none'"
    )


def fingerprint(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def as_json(value: Any) -> str:
    """JSON that stays inside its script element: whatever a prompt says, it can't end it."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def stored(name: str, content: bytes) -> str:
    """A file inside the page. Names are those of folders and figures, which the run makes of safe letters."""
    packed = base64.b64encode(zlib.compress(content, 9)).decode()
    return f'<script type="application/octet-stream" data-file="{name}">{packed}</script>'
