"""Keep numpy's BLAS from starting threads of its own beside those of the runtime.

Features are a few small products of matrices a step. Spread over every core, they take longer in all than on one: the
other threads spin between them, on cores that Triton, the runtime and the callers need.
"""

from __future__ import annotations

from threadpoolctl import threadpool_limits


def use_one_blas_thread() -> None:
    """Set it for this process, for good."""
    threadpool_limits(1, user_api="blas")
