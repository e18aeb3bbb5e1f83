"""MkDocs hook: the README as the home page, and a page for each file outside ``docs/`` that a page links to.

Pages are written for GitHub, where a link may lead to any file of the repository. The site has no copy of the
repository to point at, so it brings the files along and the links lead there.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
HOME = "README.md"
STARTS = (HOME, "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "examples")
CODE_OR_LINK = re.compile(r"^```.*?^```|`[^`\n]+`|(?<=\]\()(?P<link>[^)\s]+)(?=\))", re.MULTILINE | re.DOTALL)
PLUS_MINUS = re.compile(r"(?<=\d) ± (?=\d)")  # Narrow cells of tables would break the line there.


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the home page and every file that pages outside or inside ``docs/`` lead to, one after the other."""
    pages = [join("docs", file.src_uri) for file in files.documentation_pages() if file.src_uri.endswith(".md")]
    waiting, seen = [*STARTS, *pages], set[str]()
    while waiting:
        path = waiting.pop()
        if path in seen or not (ROOT / path).exists():
            continue
        seen.add(path)
        text = _page_text(path)
        if not path.startswith("docs/"):
            files.append(File.generated(config, site_path(path), content=text))
        waiting += [
            target for target in _targets(text, repository_path(site_path(path))) if not target.startswith("docs/")
        ]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave ``docs/``, or come from outside it, at the site's copy; keep 1 ± 2 on one line."""
    here = page.file.src_uri
    origin = repository_path(here)

    def moved(found: re.Match[str]) -> str:
        link = found["link"]
        if link is None:  # Code. GitHub wants pipes escaped in the code of a table; this Markdown shows the backslash.
            return found[0] if found[0].startswith("```") else found[0].replace("\\|", "|")
        if re.match(r"[a-z]+:|#", link):
            return found[0]
        path, hash_, anchor = link.partition("#")
        target = normpath(join(dirname(origin), path))
        if origin.startswith("docs/") and target.startswith("docs/"):
            return found[0]
        return relpath(site_path(target), dirname(here) or ".") + hash_ + anchor

    return PLUS_MINUS.sub("\u00a0±\u00a0", CODE_OR_LINK.sub(moved, markdown))


def site_path(path: str) -> str:
    """Where the site has a file of the repository."""
    if path == HOME:
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return join("repository", path, "README.md")
    return join("repository", path if path.endswith(".md") else f"{path}.md")


def repository_path(uri: str) -> str:
    """The reverse of `site_path`; a folder's list counts as its README, from which links start inside the folder."""
    if uri == "index.md":
        return HOME
    if not uri.startswith("repository/"):
        return join("docs", uri)
    path = uri.removeprefix("repository/")
    return path if (ROOT / path).exists() or path.endswith("/README.md") else path.removesuffix(".md")


def _targets(text: str, path: str) -> list[str]:
    links = [found["link"] for found in CODE_OR_LINK.finditer(text) if found["link"]]
    paths = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:|#", link)]
    return [normpath(join(dirname(path), target)) for target in paths]


def _page_text(path: str) -> str:
    """Markdown as it is, a folder as a list of its files, any other file in a code block."""
    file = ROOT / path
    if file.is_dir():
        inside = sorted(entry for entry in file.iterdir() if entry.is_dir() or entry.suffix in {".py", ".toml"})
        inside = [entry for entry in inside if not entry.name.startswith(("_", "."))]
        return "\n".join([f"# {path}", "", *(f"- [{entry.name}]({entry.name})" for entry in inside), ""])
    text = file.read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    return f"# {path}\n\n~~~~{file.suffix.removeprefix('.') if file.suffix in {'.py', '.toml'} else ''}\n{text}\n~~~~\n"
