"""Makes the tools importable: they are not installed, but run from the root of the repository."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))
