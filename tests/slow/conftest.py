"""Fixtures of the slow tests: the browser and the pages that they open."""

from browser_fixtures import *  # noqa: F403
