"""The report's pictures in docs/images, made again from any run:

python docs/screenshots.py RUN [--task TASK] [--k K]
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

from gossamer.report.page import write_report

IMAGES = Path(__file__).parent / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--task", help="of the explorer: a folder in RUN/panels (default: the first)")
    parser.add_argument("--k", help="edges kept (default: where the sparse circuit explains 90%%)")
    asked = parser.parse_args()
    chosen = {name: value for name, value in (("task", asked.task), ("k", asked.k)) if value is not None}
    views = {
        "explorer": ({"view": "explorer", "colour": "head", **chosen}, 1240),
        "curves": ({"view": "curves", "units": "edges"}, 900),
    }
    page_address = write_report(asked.run).resolve().as_uri()
    browser_path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name, (state, height) in views.items():
            page = browser.new_page(viewport={"width": 1440, "height": height}, color_scheme="light")
            page.goto(f"{page_address}#{urlencode(state)}")
            page.locator("html[data-ready]").wait_for(state="attached")
            page.screenshot(path=IMAGES / f"report-{name}.png")
            print(IMAGES / f"report-{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
