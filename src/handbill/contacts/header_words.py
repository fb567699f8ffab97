"""What columns are called: one table of words in English, German, Spanish, French, Portuguese, Vietnamese, Nepali,
Hindi and Indonesian. They are compared without case, accents, spaces and signs: see `fold`.
"""

from __future__ import annotations

import unicodedata

from handbill.kit.bounds import HEADER_CHARS

WORDS: dict[str, tuple[str, ...]] = {
    "phone": (
        "phone", "phone number", "phone no", "telephone", "telephone number", "tel", "tel no", "mobile", "mobile phone",
        "mobile number", "mobile no", "cell", "cell phone", "cellular", "contact number", "contact no", "contact phone",
        "msisdn", "whatsapp", "whatsapp number", "whatsapp phone", "whatsapp no", "wa", "wa number",
        "Handy", "Handynummer", "Telefon", "Telefonnummer", "Telefon mobil", "Mobil", "Mobilnummer", "Mobiltelefon",
        "Rufnummer", "WhatsApp-Nummer",
        "teléfono", "número de teléfono", "teléfono móvil", "teléfono celular", "móvil", "número de móvil", "celular",
        "número de celular", "número", "número de whatsapp",
        "téléphone", "numéro de téléphone", "n° de téléphone", "téléphone portable", "téléphone mobile", "portable",
        "numéro de portable", "numéro",
        "fone", "telefone", "telefone celular", "número de telefone", "telemóvel", "telefone móvel",
        "số điện thoại", "điện thoại", "điện thoại di động", "di động", "sđt", "số di động", "số đt", "số zalo", "zalo",
        "फोन", "फोन नम्बर", "मोबाइल", "मोबाइल नम्बर", "सम्पर्क नम्बर", "टेलिफोन",
        "फ़ोन", "फ़ोन नंबर", "फ़ोन नम्बर", "मोबाइल नंबर", "मोबाईल", "मोबाईल नंबर", "संपर्क नंबर", "दूरभाष",
        "व्हाट्सएप", "व्हाट्सएप नंबर",
        "nomor", "nomor telepon", "nomor hp", "no hp", "no telp", "no telepon", "telepon", "hp", "ponsel",
        "nomor ponsel", "handphone", "nomor wa", "no wa", "nomor whatsapp",
    ),
    "email": (
        "email", "e-mail", "email address", "mail", "mail address", "email id", "work email",
        "E-Mail-Adresse", "Mailadresse", "epost",
        "correo", "correo electrónico", "dirección de correo", "dirección de correo electrónico",
        "courriel", "adresse e-mail", "adresse mail", "adresse électronique", "adresse courriel",
        "endereço de e-mail", "correio eletrônico", "correio eletrónico",
        "thư điện tử", "địa chỉ email", "hộp thư",
        "इमेल", "इमेल ठेगाना", "ईमेल", "ईमेल पता", "ई-मेल", "ईमेल आईडी",
        "alamat email", "surel", "alamat surel",
    ),
    "external_id": (
        "id", "external id", "customer id", "user id", "client id", "customer no", "customer number", "member id",
        "contact id", "crm id", "uid", "distinct id",
        "Kundennummer", "Kunden-Nr.", "Kunden-ID",
        "id cliente", "id de cliente", "cliente id", "código cliente", "código de cliente", "código",
        "número de cliente",
        "numéro client", "n° client", "identifiant", "identifiant client", "code client",
        "código do cliente", "número do cliente", "id do cliente",
        "mã khách hàng", "mã kh", "mã số khách hàng",
        "ग्राहक आईडी", "ग्राहक नम्बर", "ग्राहक नंबर", "ग्राहक संख्या",
        "id pelanggan", "kode pelanggan", "nomor pelanggan",
    ),
    "name": (
        "name", "full name", "contact name", "customer name", "client name",
        "Kundenname", "Vollständiger Name", "Ansprechpartner",
        "nombre", "nombre completo", "nombre y apellidos", "nombre del cliente", "cliente",
        "nom complet", "nom et prénom", "prénom et nom", "nom du client",
        "nome", "nome completo", "nome do cliente",
        "tên", "họ tên", "họ và tên", "tên khách hàng", "tên đầy đủ",
        "नाम", "पूरा नाम", "पूरा नाम थर", "नाम थर", "ग्राहकको नाम", "ग्राहक का नाम",
        "nama", "nama lengkap", "nama pelanggan",
    ),
    "first_name": (
        "first name", "given name", "forename",
        "Vorname", "Rufname",
        "primer nombre", "nombre de pila", "nombres",
        "prénom", "prénoms",
        "primeiro nome", "nome próprio",
        "tên gọi", "tên riêng",
        "पहिलो नाम", "पहला नाम", "प्रथम नाम",
        "nama depan",
    ),
    "last_name": (
        "last name", "surname", "family name",
        "Nachname", "Familienname", "Zuname",
        "apellido", "apellidos", "primer apellido",
        "nom", "nom de famille",
        "sobrenome", "apelido", "último nome",
        "họ", "họ đệm", "họ và tên đệm",
        "थर", "उपनाम", "अंतिम नाम", "कुलनाम",
        "nama belakang", "nama keluarga", "marga",
    ),
    "locale": (
        "locale", "language", "lang", "preferred language",
        "Sprache", "idioma", "lengua", "langue", "língua", "ngôn ngữ", "भाषा", "bahasa",
    ),
    "tags": (
        "tags", "tag", "labels", "label", "groups", "lists",
        "Schlagworte", "Gruppen", "etiquetas", "etiqueta", "grupos", "étiquettes", "étiquette", "groupes",
        "nhãn", "thẻ", "nhóm", "ट्याग", "टैग", "समूह", "label pelanggan", "grup", "kelompok",
    ),
    "consent": (
        "consent", "opt in", "opted in", "marketing consent", "accepts marketing", "subscribed", "newsletter",
        "Einwilligung", "Zustimmung", "Werbeeinwilligung",
        "consentimiento", "acepta publicidad", "suscrito",
        "consentement", "accord", "abonné",
        "consentimento", "aceita marketing", "inscrito",
        "đồng ý", "đồng ý nhận tin", "chấp thuận",
        "सहमति", "मन्जुरी", "सम्मति",
        "persetujuan", "setuju",
    ),
}  # fmt: skip

NAMES_ALONE = ("name", "nombre", "nome", "tên", "नाम", "nama")
"""Beside a column of last names these are first names."""
SURNAMES_ALONE = ("name",)
"""Beside a column called `Vorname` this is the last name."""


def fold(name: str) -> str:
    """`E-Mail Address ` and `e_mail address` are one name, so are `Téléphone` and `telephone`.

    Vowel signs of Indian scripts stay, marks that only modify a letter go. Only HEADER_CHARS characters are looked at.
    """
    bare = name[:HEADER_CHARS].casefold().replace("đ", "d")
    return "".join(letter for letter in unicodedata.normalize("NFKD", bare) if _counts(letter))


def _counts(letter: str) -> bool:
    return letter.isalnum() or (unicodedata.category(letter) in ("Mc", "Mn") and not unicodedata.combining(letter))


TARGETS = {fold(word): target for target, words in WORDS.items() for word in words}
FIRST_NAMES_ALONE = frozenset(map(fold, NAMES_ALONE))
LAST_NAMES_ALONE = frozenset(map(fold, SURNAMES_ALONE))
