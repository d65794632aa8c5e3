"""The documentation site: `make docs` builds it in `site/`, without a network (`make docs QUICK=1`: less)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import tokendynamics

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER / "_site"), str(FOLDER.parent)]
# Each start of a scheduler is no news.
os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "error")

project = "tokendynamics"
author = "The tokendynamics authors"
project_copyright = f"2026, {author}"
version = release = tokendynamics.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "accessible",
    "mathml",
    "api_pages",
    "explorer_page",
    "ledger",
    "format_pages",
    "paper_scripts",
]
exclude_patterns = [
    "_site",
    "tutorials",
    "gallery",
    "built/beside",
    "built/paper_scripts",
    "papers/*.json",
]
html_extra_path = ["built/beside"]
nitpicky = False
smartquotes = False  # they make dashes of the hyphens of options

# Markdown as GitHub shows it, so that the pages are read there as well.
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
myst_dmath_double_inline = True
html_math_renderer = "mathml"

# Names in docstrings stand between single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autosummary_generate = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False  # what stands before a colon is a sentence, no type
napoleon_use_ivar = True
napoleon_attr_annotations = False  # types stand in the signature
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = "tokendynamics"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# A quick build shows the code of what takes longer than about ten seconds, and does not run it.
QUICK = os.environ.get("DOCS_QUICK", "") not in ("", "0")
sphinx_gallery_conf = {
    "examples_dirs": ["tutorials", "gallery", "built/paper_scripts"],
    "gallery_dirs": ["built/tutorials", "built/gallery", "built/papers"],
    "filename_pattern": r"/(?!slow_)\w+\.py" if QUICK else r"\.py",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "min_reported_time": 1e9,
    "show_memory": False,
    "write_computation_times": False,
    "show_signature": False,
    "image_scrapers": ("matplotlib", "gallery_pages"),
    "ignore_repr_types": r"matplotlib|pathlib",
    "remove_config_comments": True,
    "within_subsection_order": "gallery_pages.InOrder",
    "copyfile_regex": r"",
}
suppress_warnings = ["config.cache"]
