"""Models and their services, each behind a small protocol."""

import os

# onnxruntime reports its use to its maker from the moment it is imported, unless it is told not to.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
