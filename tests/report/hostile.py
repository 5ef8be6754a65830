"""Text that a page must show and not obey, and a reader that tells one from the other."""

from __future__ import annotations

from html.parser import HTMLParser

HOSTILE = (
    "</title></script></style><script>alert(1)</script>\"' onload='x' <img src=x onerror=y>"
    "&lt; \x00\x1b[31m \u202egnp.exe\u2066 \u2028 \ud800 \udfff \ufffe"
)


class Reader(HTMLParser):
    """Collects the elements and attributes that a browser would see."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def assert_harmless(page: str) -> Reader:
    """Read a page, and require that nothing of the text became markup or an order."""
    page.encode("utf-8")
    for number in (*range(0x0A), *range(0x0B, 0x20), 0x7F, 0x2028, 0x202E, 0x2066, 0xFFFE):
        assert chr(number) not in page
    read = Reader(page)
    assert not read.tags & {
        "script",
        "img",
        "iframe",
        "object",
        "a",
        "form",
        "base",
        "foreignobject",
    }
    assert not [name for name, _ in read.attributes if name.startswith("on")]
    assert not read.open
    for name, value in read.attributes:
        if name in ("src", "href", "xlink:href", "action"):
            assert value == "data:,"
    return read
