"""``python -m cloister``."""

from __future__ import annotations

import sys

from cloister.cli import main

sys.exit(main())
