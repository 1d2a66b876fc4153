"""The header of a JPEG file: what its marker segments say before the first scan.

Strategy: one walk from segment to segment, each length checked, no table read; so a header costs some microseconds,
whatever the file's size. Nothing is decoded and nothing is looked for inside a segment's bytes, so a thumbnail in
the metadata is never mistaken for the picture. A file may lie: two frame headers, a scan before its frame, lengths
that lead out of the file are refused here, and whoever decodes holds the size against his own pixel limit.

Markers and fields are those of ITU-T T.81, annex B.
"""

from typing import NamedTuple

from wds_tools.errors import DecodeError

SOF_BASELINE, SOF_EXTENDED = 0xC0, 0xC1
_DHT, _DAC, _SOS, _DRI, _APP0, _APP1, _APP14 = 0xC4, 0xCC, 0xDA, 0xDD, 0xE0, 0xE1, 0xEE
_STANDALONE = range(0xD0, 0xDA)  # restart markers, SOI and EOI: no segment, no length
_METADATA = (b"Exif\0", b"http://ns.adobe.com/xap/1.0/\0")
_FACTORS = (1, 2, 4)
_MAX_BLOCKS = 10  # of an MCU


class Component(NamedTuple):
    """One colour component of a frame: its name, sampling factors, and quantisation table."""

    id: int
    h: int
    v: int
    table: int


class Header(NamedTuple):
    """What a JPEG's header says. Offsets count from the file's first byte; a segment's is that of its length field."""

    width: int
    height: int
    components: tuple[Component, ...]
    precision: int  # bits a sample
    sof: int  # the frame header's marker: 0xC0 baseline, 0xC2 progressive, …
    restart_interval: int  # MCUs; 0 for none
    scan_components: int  # of the first scan
    sof_at: int
    dri_at: int  # of the last one; 0 for none
    sos_at: int
    scan_at: int  # the first of the coded bytes
    jfif: bool
    adobe: "int | None"  # the Adobe segment's colour transform
    exif: tuple[tuple[int, int], ...]  # offset and length of each EXIF or XMP payload, its name included
    whole_spectrum: bool  # the first scan holds all coefficients, at once

    @property
    def tileable(self) -> bool:
        """Whether restart tiles can be made and cut, if the rest of the file is sound: see ``image/tiles.py``."""
        return (
            self.sof in (SOF_BASELINE, SOF_EXTENDED)
            and self.precision == 8
            and len(self.components) in (1, 3)
            and self.scan_components == len(self.components)
            and self.whole_spectrum
            and self.width > 0
            and self.height > 0
            and all(one.h in _FACTORS and one.v in _FACTORS for one in self.components)
            and (len(self.components) == 1 or sum(one.h * one.v for one in self.components) <= _MAX_BLOCKS)
        )

    @property
    def mcu_width(self) -> int:
        """Pixels; of a single component an MCU is one block, whatever its sampling factors say."""
        return 8 if len(self.components) == 1 else 8 * max(one.h for one in self.components)

    @property
    def mcu_height(self) -> int:
        """Pixels."""
        return 8 if len(self.components) == 1 else 8 * max(one.v for one in self.components)

    @property
    def mcu_columns(self) -> int:
        """MCUs of a row."""
        return -(-self.width // self.mcu_width)

    @property
    def mcu_rows(self) -> int:
        """Rows of MCUs."""
        return -(-self.height // self.mcu_height)


def parse(data: "bytes | memoryview") -> Header:
    """The header of a JPEG file, which must reach to the first scan; DecodeError when it cannot be read.

    Any kind of JPEG is read, with any number of components; ``Header.tileable`` tells which ones tiles can be made of.
    """
    if data[:2] != b"\xff\xd8":
        raise DecodeError("not a JPEG: it does not begin with FF D8")
    size = len(data)
    at, sof_at, sof, interval, dri_at, jfif, adobe = 2, 0, 0, 0, 0, False, None
    exif: list[tuple[int, int]] = []
    while True:
        if at + 4 > size:
            raise DecodeError("truncated JPEG: it ends before its first scan")
        code = data[at + 1]
        if data[at] != 0xFF or code < 0xC0 or code in _STANDALONE:
            raise DecodeError(f"damaged JPEG: no marker segment at byte {at}")
        if code == 0xFF:  # a fill byte
            at += 1
            continue
        at += 2
        length = data[at] << 8 | data[at + 1]
        end = at + length
        if length < 2 or end > size:
            raise DecodeError(f"damaged JPEG: the segment at byte {at - 2} claims {length} bytes")
        if code >= _APP0:
            if code == _APP1:
                if bytes(data[at + 2 : at + 31]).startswith(_METADATA):
                    exif.append((at + 2, length - 2))
            elif code == _APP0:
                jfif = jfif or data[at + 2 : at + 7] == b"JFIF\0"
            elif code == _APP14 and length >= 14 and data[at + 2 : at + 7] == b"Adobe":
                adobe = data[at + 13]
        elif code == _SOS:
            break
        elif code == _DRI:
            if length != 4:
                raise DecodeError(f"damaged JPEG: a restart interval of {length} bytes")
            interval, dri_at = data[at + 2] << 8 | data[at + 3], at
        elif code < 0xD0 and code not in (_DHT, _DAC):
            if sof_at:
                raise DecodeError("damaged JPEG: it has two frame headers")
            sof_at, sof = at, code
        at = end
    if not sof_at:
        raise DecodeError("damaged JPEG: a scan before the frame header")
    precision, height, width, components = _frame(data, sof_at)
    named = data[at + 2] if length > 2 else 0
    if length != 6 + 2 * named or not 1 <= named <= len(components):
        raise DecodeError(f"damaged JPEG: a scan header of {length} bytes for {named} components")
    return Header(
        width=width,
        height=height,
        components=components,
        precision=precision,
        sof=sof,
        restart_interval=interval,
        scan_components=named,
        sof_at=sof_at,
        dri_at=dri_at,
        sos_at=at,
        scan_at=end,
        jfif=jfif,
        adobe=adobe,
        exif=tuple(exif),
        whole_spectrum=data[end - 3 : end] == b"\0\x3f\0",
    )


def _frame(data: "bytes | memoryview", at: int) -> tuple[int, int, int, tuple[Component, ...]]:
    """Precision, height, width and components of the frame header whose length field is at ``at``."""
    length = data[at] << 8 | data[at + 1]
    count = data[at + 7] if length >= 8 else 0
    if not count or length != 8 + 3 * count:
        raise DecodeError(f"damaged JPEG: a frame header of {length} bytes for {count} components")
    components = tuple(
        [Component(data[i], data[i + 1] >> 4, data[i + 1] & 15, data[i + 2]) for i in range(at + 8, at + length, 3)]
    )
    if not all(1 <= one.h <= 4 and 1 <= one.v <= 4 for one in components):
        raise DecodeError("damaged JPEG: sampling factors must be from 1 to 4")
    height, width = data[at + 3] << 8 | data[at + 4], data[at + 5] << 8 | data[at + 6]
    if not width:
        raise DecodeError("damaged JPEG: it has no width")
    return data[at + 2], height, width, components
