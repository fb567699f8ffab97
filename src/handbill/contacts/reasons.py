"""Why a row was rejected, noted or repaired: one typed list, each with its meaning and what to do."""

from __future__ import annotations

from handbill.contacts import dialects, emails, phones, values
from handbill.kit.bounds import EMAIL_CHARS, PHONE_CHARS

COLUMNS = "COLUMNS_TOO_MANY"
BAD_JSON = "BAD_JSON_LINE"
KEY_MISSING = "KEY_MISSING"
TOO_SLOW = "ROW_TOO_SLOW"

REASONS: dict[str, tuple[str, str]] = {
    phones.MISSING: ("There is no phone number.", "Fill it in, or choose another key."),
    phones.INVALID: ("It is no phone number of any plan we know.", "Correct it, best as +country code and number."),
    phones.DIGITS_MISSING: (
        "It has fewer digits than the mobile numbers of its country.",
        "Fill in what is missing, the area code included.",
    ),
    phones.DIGITS_EXTRA: (
        "It has more digits than the mobile numbers of its country.",
        "Take out what is too much. Of several numbers in the cell, keep one.",
    ),
    phones.OTHER_COUNTRY: (
        "It is no number of the region that was given; with a plus it would be one of another country.",
        "Correct it. If the other country is meant, write the plus: see handbill_suggestion.",
    ),
    phones.NO_COUNTRY: ("A national number, and no country is known.", "Set the default region, or write it with +."),
    phones.SCIENTIFIC: (
        "The spreadsheet rounded the number (4.41E+11); its digits are lost.",
        "Format the column as text before you export, and fill the number in again.",
    ),
    phones.AMBIGUOUS: ("It could be two different numbers.", "Write it as +country code and number."),
    phones.SEVERAL: ("There is more than one number in the cell.", "Keep one; put the others in columns of their own."),
    phones.EXTENSION: (
        "It is not clear which digits belong to the number and which to its extension.",
        "Give a number without one.",
    ),
    phones.TOO_LONG: (
        f"The cell has more than {PHONE_CHARS} characters, which no phone number has.",
        "Keep one number and nothing else.",
    ),
    emails.MISSING: ("There is no e-mail address.", "Fill it in, or choose another key."),
    emails.INVALID: ("It is no e-mail address.", "Correct it."),
    emails.SEVERAL: ("There is more than one address in the cell.", "Keep one."),
    emails.TOO_LONG: (
        f"The cell has more than {EMAIL_CHARS} characters, which no e-mail address has.",
        "Keep one address and nothing else.",
    ),
    values.DATE_INVALID: ("It is no date in the column's order.", "Write it as YYYY-MM-DD."),
    values.NUMBER_INVALID: ("It is no number.", "Write it as 1234.56."),
    values.BOOL_INVALID: ("It says neither yes nor no.", "Write yes or no."),
    values.LOCALE_INVALID: ("It is no language code.", "Write it as en, pt-BR or zh-Hant-TW."),
    values.TEXT_TOO_LONG: ("The text is longer than 2,000 characters.", "Shorten it."),
    values.BAD_TEXT: ("The text holds a zero character or half of a letter.", "Export the file again as UTF-8."),
    COLUMNS: ("The row has more cells than there are columns.", "Put quotes around cells that hold the delimiter."),
    dialects.UNCLOSED: (
        f"A quote is opened in this line and not closed within {dialects.RUNAWAY_LINES} lines.",
        "Close it, or remove it.",
    ),
    dialects.CELL_TOO_LONG: (
        f"The line has a cell of more than {dialects.CELL_BYTES} characters, or {dialects.LINE_BYTES} bytes in all.",
        "Shorten it. If the line should be several, end each with a line break.",
    ),
    dialects.STRAY_RETURN: (
        "A carriage return stands inside the line.",
        "Remove it, or put quotes around the cell that has it.",
    ),
    BAD_JSON: ("The line is no JSON object.", "Write one object on each line."),
    KEY_MISSING: ("The cell that tells contacts apart is empty.", "Fill it in, or choose another key."),
    TOO_SLOW: (
        "This row, or one beside it, could not be read within the limits of time and memory.",
        "Shorten its cells, and remove what is no text. Then upload the rejected rows again.",
    ),
    phones.REPAIRED_PLUS: ("The plus sign was lost, and only one number is possible.", "Nothing."),
    phones.REPAIRED_ZERO: ("The leading zero was lost, and only one number is possible.", "Nothing."),
    phones.REPAIRED_EXCEL: ("The spreadsheet changed the form of the number, not its digits.", "Nothing."),
    phones.REPAIRED_VARIANT: (
        "An old form of the number (Brazil's ninth digit, Mexico's 1, Vietnam's 012).",
        "Nothing.",
    ),
    phones.REPAIRED_EXTENSION: ("The extension was left out: no message reaches it.", "Nothing."),
}
