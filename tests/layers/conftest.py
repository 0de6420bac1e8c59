"""Without a GPU, kernels run in Triton's interpreter."""

import support.engines.interpreter  # noqa: F401, selects it
