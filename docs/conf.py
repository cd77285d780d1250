# SPDX-License-Identifier: Apache-2.0
"""Settings of the documentation site; what is special about its pages is in site/."""

import logging
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
# blocks of `sh run` find the command nnl of this Python
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

from docs.site.extension import digest  # noqa: E402

project = "nnl"
author = "the authors of nnl"
html_title = "nnl"
extensions = ["myst_nb", "sphinx_copybutton", "sphinx_design", "docs.site.extension"]
exclude_patterns = ["site", "conf.py"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

nb_custom_formats = {".py": "docs.site.notebooks.read"}
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "docs-cache" / digest(ROOT))
nb_execution_in_temp = True
nb_execution_timeout = 900  # seconds for one cell; a busy machine is slow
nb_execution_raise_on_error = True
nb_merge_streams = True
logging.getLogger("traitlets").setLevel(logging.WARNING)  # else it names every page

suppress_warnings = ["ref.python"]  # annotations name some classes that two modules have

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["table.js"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_math_renderer = "mathml"
highlight_language = "text"
