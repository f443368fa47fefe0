"""What the running kernel may lack."""

import os
from typing import NoReturn

import pytest


def lacks(what: str) -> NoReturn:
    """Skips a test for what this kernel lacks. With EXPRESSWAY_REQUIRE_KERNEL_TESTS=1, as in the guest whose kernel
    and modules are chosen for these tests, it fails instead."""
    if os.environ.get("EXPRESSWAY_REQUIRE_KERNEL_TESTS") == "1":
        pytest.fail(f"EXPRESSWAY_REQUIRE_KERNEL_TESTS=1, but: {what}")
    pytest.skip(f"{what}; tests/guest runs this in a guest")
