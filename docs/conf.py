"""Sphinx's configuration: `make docs` builds the site into docs/site/."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import made_pages

from edgevit import __version__

made_pages.write()

project, author, release = "edgevit", "edgevit's developers", __version__
copyright = "edgevit's developers, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["site", "examples"]
html_theme = "furo"
html_title = f"edgevit {release}"
default_role = "code"  # docstrings write `code` as Markdown does
autodoc_typehints = "description"
autodoc_member_order = "bysource"
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
smartquotes = False  # options begin with two hyphens
