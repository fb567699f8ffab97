"""Which letters the bytes stand for. No letter is ever dropped: what is no UTF-8 is read as something that has it.

A file that is UTF-8 but for some lines (two exports pasted together) is `mixed`: each line for itself, UTF-8 or
Windows-1252.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator

from charset_normalizer import from_bytes

MIXED = "mixed"
UTF8 = "utf-8"
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
SAMPLE = 65_536
_LIKELY = [
    "cp1252",
    "cp1250",
    "cp1251",
    "cp1253",
    "cp1254",
    "cp1255",
    "cp1256",
    "shift_jis",
    "gb18030",
    "big5",
    "euc_kr",
]


_LATIN = frozenset({"cp1250", "cp1252", "cp1254", "ascii"})
_PAGES = {"TR": "cp1254"} | dict.fromkeys(("PL", "CZ", "SK", "HU", "SI", "HR", "RO", "BA", "RS", "AL"), "cp1250")


def bom(head: bytes) -> tuple[str, int] | None:
    """The encoding that the first bytes announce, and how many they are."""
    for mark, name in _BOMS:
        if head.startswith(mark):
            return name, len(mark)
    return None


def guess(head: bytes, whole: bool, region: str | None = None) -> str:
    """From the head of a file; `whole` when there is no more of it. Confirmed later, when all bytes were seen."""
    if found := bom(head):
        return found[0]
    if wide := _wide(head):
        return wide
    if valid_utf8(head, final=whole):
        return UTF8
    lines = [line for line in head.split(b"\n")[:-1] if not line.isascii()]
    good = sum(valid_utf8(line, final=True) for line in lines)
    if lines and good >= 0.5 * len(lines):
        return MIXED
    return _legacy(head[:SAMPLE], region)


def _wide(head: bytes) -> str | None:
    """UTF-16 without its mark: every other byte of plain text is zero."""
    sample = head[:2_000]
    if len(sample) < 4 or len(sample) // 4 > sample.count(0):
        return None
    return "utf-16-le" if sample[1::2].count(0) > sample[0::2].count(0) else "utf-16-be"


def _legacy(sample: bytes, region: str | None) -> str:
    """Another alphabet shows itself; which of the Latin pages it is, only the region can say."""
    best = from_bytes(sample, cp_isolation=_LIKELY).best()
    if best is None or best.encoding in _LATIN:
        return _PAGES.get(region or "", "cp1252")
    return best.encoding


def valid_utf8(data: bytes, *, final: bool) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(data, final)
    except UnicodeDecodeError:
        return False
    return True


def one_line(line: bytes) -> str:
    """A line of a mixed file."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return windows(line)


def windows(data: bytes) -> str:
    """Windows-1252; its five holes are the control characters that Latin-1 has there."""
    try:
        return data.decode("cp1252")
    except UnicodeDecodeError:
        return "".join(bytes([byte]).decode("cp1252" if byte not in _HOLES else "latin-1") for byte in data)


_HOLES = frozenset({0x81, 0x8D, 0x8F, 0x90, 0x9D})


def transcoded(blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """The same text in UTF-8, block by block; UnicodeDecodeError when it is not that encoding after all.

    The caller has taken the byte order mark away. Windows-1252 and `mixed` read any bytes.
    """
    if encoding in (MIXED, "cp1252"):
        rest = b""
        reader: Callable[[bytes], str] = one_line if encoding == MIXED else windows
        for block in blocks:
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            yield "".join(reader(line) + "\n" for line in lines).encode()
            if len(rest) > 1 << 20:  # no line is that long: read what there is, so that memory stays bounded
                yield reader(rest).encode()
                rest = b""
        yield reader(rest).encode()
        return
    decoder = codecs.getincrementaldecoder(encoding)()
    for block in blocks:
        yield decoder.decode(block).encode()
    yield decoder.decode(b"", True).encode()
