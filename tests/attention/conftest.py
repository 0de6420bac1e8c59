"""Without a GPU the Triton backend runs in Triton's interpreter."""

import support.engines.interpreter  # noqa: F401, selects it
