"""Templates of text: markup in files beside the Python that has the facts."""

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape


def templates(package: str) -> Environment:
    """The folder `templates` of a package. HTML escapes the values that it shows; an unknown name is an error."""
    return Environment(
        loader=PackageLoader(package),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
