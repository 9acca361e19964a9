"""The pytest face of the suite."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
