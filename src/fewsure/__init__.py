"""fewsure: few-shot learning that knows how sure it is."""

from fewsure.version import __version__

__all__ = ["__version__"]
