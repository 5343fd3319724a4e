"""Run the code of the gallery's pages, and keep the pictures that they draw."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

if __name__ == "__main__":
    for page in sorted((ROOT / "docs/gallery").glob("*.md")):
        code = "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S))
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "MPLBACKEND": "agg"}
            subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=True)
            for picture in Path(folder).glob("*.png"):
                print(shutil.copy(picture, ROOT / f"docs/img/gallery-{picture.name}"))
