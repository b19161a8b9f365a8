"""The picture that README opens with: the page of `make demo-real`, as a headless Chromium shows it: `make picture`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).parents[2] / "docs" / "report.png"
WIDTH, HEIGHT = 1280, 800
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def take(page: Path, picture: Path) -> None:
    """Take a screenshot of a page without a window.

    Raises:
        SystemExit: there is no Chromium.
    """
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if chromium is None:
        sys.exit("no Chromium here; try: make browser")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        opened.goto(page.resolve().as_uri())
        opened.screenshot(path=picture, full_page=True)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, default=Path("demo-real"), help="what `make demo-real` has made")
    parser.add_argument("--out", type=Path, default=PICTURE)
    options = parser.parse_args()
    from edgevit import report

    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        report([options.demo], output=page)
        take(page, options.out)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
