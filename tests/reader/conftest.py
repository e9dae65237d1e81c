"""Assertions of shared cases say what was compared."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.reader.framework_cases")
