"""Adds to the site what docs/ does not hold: a page for each module, and links into the repository that lead somewhere.

On a page, a link to `../src/fewsure/….py` is one to the file, for those who read the repository. On the site it leads
to the module's page, and one to a file in results/ to a copy of it. A link to what is not there fails the build, and so
does a page that would fetch something from elsewhere.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
CONTENT = "# {0}\n\n::: {0}\n    options: {{show_root_heading: false, show_root_toc_entry: false}}\n"
"""The text of a module's page."""
ELSEWHERE = re.compile(r'(?:src|data|<link[^>]* href)="https?://')
CHANGELOG = "CHANGELOG.md"
LINK = re.compile(
    r"\]\((?P<up>(?:\.\./)+)(?P<path>(?:src|benchmarks|examples)/[^)#]*|results/[^)#]*\.json|CHANGELOG\.md)"
    r"(?P<anchor>#[^)]*)?\)"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the modules' pages, the results and the changelog."""
    for module in modules():
        files.append(File.generated(config, page_of(module), content=CONTENT.format(name_of(module))))
    for result in sorted((ROOT / "results").glob("*.json")):
        files.append(File.generated(config, f"results/{result.name}", abs_src_path=str(result)))
    files.append(File.generated(config, CHANGELOG, abs_src_path=str(ROOT / CHANGELOG)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links into the repository into links on the site; list the modules on the reference's page."""
    here = posixpath.dirname(page.file.src_uri)

    def on_site(found: re.Match[str]) -> str:
        path = found["path"].rstrip("/")
        if not (ROOT / path).exists():
            raise PluginError(f"{page.file.src_uri} links to {path}, which is not in the repository")
        if path.startswith("results/") or path == CHANGELOG:
            target = path
        elif path.startswith("src/"):
            target = page_of(ROOT / path / "__init__.py" if (ROOT / path).is_dir() else ROOT / path)
        else:
            raise PluginError(f"{page.file.src_uri} links to {path}; name it without a link")
        return f"]({posixpath.relpath(target, here or '.')}{found['anchor'] or ''})"

    if page.file.src_uri == CHANGELOG:  # which lies beside docs/ in the repository, and among the pages on the site
        markdown = markdown.replace("](docs/", "](")
    if page.file.src_uri == "reference/index.md":
        markdown += "\n" + "\n".join(_rows()) + "\n"
    return LINK.sub(on_site, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse what is fetched from elsewhere when the page is viewed."""
    if found := ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_uri} fetches {output[found.start() : found.end() + 60]!r}")
    return output


def modules() -> list[Path]:
    """The package's files, without the one that is run and not imported."""
    return [path for path in sorted(SOURCE.rglob("*.py")) if path.name != "__main__.py"]


def name_of(module: Path) -> str:
    """`fewsure.data.scaling`, of a file."""
    parts = module.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def page_of(module: Path) -> str:
    """Where a module's page lies."""
    return f"reference/{name_of(module).replace('.', '/')}.md"


def _rows() -> list[str]:
    def first_line(module: Path) -> str:
        found = re.match(r'"""(.*?)(?:"""|\n)', module.read_text(encoding="utf-8"))
        return found[1].replace("|", "\\|") if found else ""

    rows = [
        f"| [{name_of(module)}]({posixpath.relpath(page_of(module), 'reference')}) | {first_line(module)} |"
        for module in modules()
    ]
    return ["| module | |", "|---|---|", *rows]
