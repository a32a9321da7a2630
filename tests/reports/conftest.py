"""The browser of the tests of pages."""

from tests.support.browser import browser, session

__all__ = ["browser", "session"]
