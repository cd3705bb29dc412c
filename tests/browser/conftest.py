"""Fixtures: the browser, and the pages that these tests open."""

from browser_fixtures import *  # noqa: F403
