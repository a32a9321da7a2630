"""How Sphinx builds these pages: `make docs`, or `sphinx-build -W docs docs/_build`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import recollect

project = "Recollect"
author = "The Recollect authors"
project_copyright = author
version = release = recollect.__version__

# The last one is ours: pages made from the code, so that they cannot go out of date.
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "recollect_docs",
]
exclude_patterns = ["_build", "_ext"]

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3
smartquotes = False  # would make a dash of the two hyphens of a flag

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
add_module_names = False
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = "Recollect"
html_static_path = ["_static"]
html_css_files = ["extra.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "sidebar_hide_name": False,
    "light_css_variables": {"color-brand-primary": "#1f6fb2", "color-brand-content": "#1f6fb2"},
    "dark_css_variables": {"color-brand-primary": "#6cb2eb", "color-brand-content": "#6cb2eb"},
}
