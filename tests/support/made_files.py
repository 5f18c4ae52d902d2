"""Files as people send them, made here: PDF, Word, archives that expand."""

import io
import zipfile
from collections.abc import Sequence

DOCX_TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType='
    '"application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Default Extension="xml" ContentType="application/xml"/>'
    '<Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-'
    'officedocument.wordprocessingml.document.main+xml"/></Types>'
)
DOCX_RELATIONS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    '<Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/'
    'relationships/officeDocument" Target="word/document.xml"/></Relationships>'
)
WORDS = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def pdf(pages: Sequence[str], *, title: str | None = None, extra: bytes = b"") -> bytes:
    """A PDF with a line of text for each line of each page; `extra` goes into its trailer."""
    objects: list[bytes] = []

    def add(body: bytes) -> int:
        objects.append(body)
        return len(objects)

    font = add(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    tree = len(objects) + 2 * len(pages) + 1
    kids = []
    for text in pages:
        lines = "".join(f"({line}) Tj 0 -16 Td " for line in text.split("\n") if line)
        stream = f"BT /F1 12 Tf 72 720 Td {lines}ET".encode("latin-1")
        content = add(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
        kids.append(
            add(
                b"<< /Type /Page /Parent %d 0 R /MediaBox [0 0 612 792] /Contents %d 0 R"
                b" /Resources << /Font << /F1 %d 0 R >> >> >>" % (tree, content, font)
            )
        )
    listed = b" ".join(b"%d 0 R" % kid for kid in kids)
    add(b"<< /Type /Pages /Kids [%s] /Count %d >>" % (listed, len(kids)))
    root = add(b"<< /Type /Catalog /Pages %d 0 R >>" % tree)
    if title:
        extra += b" /Info %d 0 R" % add(b"<< /Title (%s) >>" % title.encode("latin-1"))
    made = bytearray(b"%PDF-1.7\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(made))
        made += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(made)
    made += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    made += b"".join(b"%010d 00000 n \n" % place for place in places)
    made += b"trailer\n<< /Size %d /Root %d 0 R %s >>\n" % (len(objects) + 1, root, extra)
    return bytes(made + b"startxref\n%d\n%%%%EOF\n" % table)


def marked_pdf(page: str, *, mark: bytes) -> bytes:
    """A PDF of one page with one bookmark; `mark` is its title as PDF writes it, such as `(A)`."""
    outlines = b"<< /Type /Outlines /First << /Title %s /Dest [0 /Fit] >> /Count 1 >>" % mark
    return pdf([page]).replace(b"/Type /Catalog", b"/Type /Catalog /Outlines " + outlines)


def encrypted_pdf() -> bytes:
    """A PDF whose words only a password would show."""
    noise = b"<" + b"5a" * 32 + b">"
    extra = b" /Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O %s /U %s >> /ID [<00> <00>]" % (
        noise,
        noise,
    )
    return pdf(["secret words"], extra=extra)


def docx(body: str, *, title: str | None = None) -> bytes:
    """A Word file; `body` is what `w:body` holds."""
    parts = {
        "[Content_Types].xml": DOCX_TYPES,
        "_rels/.rels": DOCX_RELATIONS,
        "word/document.xml": f'<w:document xmlns:w="{WORDS}"><w:body>{body}</w:body></w:document>',
        "word/styles.xml": f'<w:styles xmlns:w="{WORDS}"><w:style w:type="paragraph" '
        'w:styleId="Heading1"><w:name w:val="heading 1"/></w:style></w:styles>',
        "word/_rels/document.xml.rels": '<Relationships xmlns="http://schemas.openxmlformats.org/'
        'package/2006/relationships"><Relationship Id="s" Type="http://schemas.openxmlformats.org/'
        'officeDocument/2006/relationships/styles" Target="styles.xml"/></Relationships>',
    }
    if title:
        parts["docProps/core.xml"] = (
            '<cp:coreProperties xmlns:cp="http://schemas.openxmlformats.org/package/2006/metadata/'
            f'core-properties" xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}'
            "</dc:title></cp:coreProperties>"
        )
    return archive({name: text.encode() for name, text in parts.items()})


def paragraph(text: str, style: str | None = None) -> str:
    """A paragraph of a Word file."""
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{properties}<w:r><w:t>{text}</w:t></w:r></w:p>"


def table(*rows: Sequence[str]) -> str:
    """A table of a Word file."""
    cells = ("".join(f"<w:tc>{paragraph(cell)}</w:tc>" for cell in row) for row in rows)
    return "<w:tbl>" + "".join(f"<w:tr>{row}</w:tr>" for row in cells) + "</w:tbl>"


def archive(parts: dict[str, bytes]) -> bytes:
    """A ZIP archive."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in parts.items():
            zipped.writestr(name, content)
    return made.getvalue()
