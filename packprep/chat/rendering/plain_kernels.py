"""Kernels that read and write conversations of role and content alone, without Python objects.

Texts are UTF-8. A row that one of them cannot take, such as one with a blank content, is left to
the general code: no row is refused here.

About 2 nanoseconds per byte of JSON text, and 1 per byte of rendered text.
"""

from packprep.packing.kernels.compiled import Out, inlined, kernel
from packprep.support.arrays import Bools, Int32, Int64, UInt8

TRUTH, CONTAINS, BEGINS, ENDS = range(4)
"""Questions of guards."""

KEEP, SPACE, NEWLINES = range(3)
"""Characters that are stripped from one side of a text."""


@inlined
def space_size(text: UInt8, at: int, stop: int) -> int:
    """Bytes of the character at a place if it is white space of str.strip, else 0."""
    first = text[at]
    if first < 0x80:
        return 1 if first == 0x20 or 9 <= first <= 13 or 0x1C <= first <= 0x1F else 0
    if first == 0xC2 and at + 1 < stop:
        return 2 if text[at + 1] == 0x85 or text[at + 1] == 0xA0 else 0
    if at + 2 >= stop:
        return 0
    second, third = text[at + 1], text[at + 2]
    if first == 0xE1:
        return 3 if second == 0x9A and third == 0x80 else 0
    if first == 0xE2 and second == 0x80:
        is_space = third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF
        return 3 if is_space else 0
    if first == 0xE2:
        return 3 if second == 0x81 and third == 0x9F else 0
    return 3 if first == 0xE3 and second == 0x80 and third == 0x80 else 0


@inlined
def after_space(text: UInt8, at: int, stop: int) -> int:
    """The place behind white space of JSON."""
    while at < stop and (text[at] == 32 or 9 <= text[at] <= 10 or text[at] == 13):
        at += 1
    return at


@inlined
def after_name(cells: UInt8, at: int, stop: int, names: UInt8, first: int, last: int) -> int:
    """The place behind a name in quotes; -1 where it is another one."""
    if at + last - first + 2 > stop or cells[at] != 34 or cells[at + 1 + last - first] != 34:
        return -1
    for place in range(last - first):
        if cells[at + 1 + place] != names[first + place]:
            return -1
    return at + 2 + last - first


@inlined
def after_sign(cells: UInt8, at: int, stop: int, sign: int) -> int:
    """The place behind a sign with white space around it; -1 where there is another one."""
    at = after_space(cells, at, stop)
    if at >= stop or cells[at] != sign:
        return -1
    return int(after_space(cells, at + 1, stop))


@inlined
def hexadecimal(cells: UInt8, at: int) -> int:
    """Value of four hexadecimal digits; -1 for others."""
    value = 0
    for place in range(at, at + 4):
        sign = cells[place]
        if 48 <= sign <= 57:
            value = 16 * value + sign - 48
        elif 97 <= sign | 32 <= 102:
            value = 16 * value + (sign | 32) - 87
        else:
            return -1
    return value


@kernel
def read_chats(
    cells: UInt8,
    offsets: Int64,
    names: UInt8,
    name_stops: Int64,
    firsts: Out[Int64],
    roles: Out[UInt8],
    stops: Out[Int64],
    characters: Out[Int64],
    contents: Out[UInt8],
) -> int:
    """Read rows of JSON text [{"role": ..., "content": ...}, ...].

    cells, offsets [rows + 1]: the rows. names, name_stops: "role", "content" and the known roles,
    one after the other. Out: firsts [rows + 1], the first message of each row, none for a row that
    is no such list or has a blank content; of each message: roles, the number of its role among the
    known ones; stops, the end of its content in `contents`; characters, their number. Returns the
    number of messages.
    """
    count = written = 0
    for row in range(len(offsets) - 1):
        firsts[row] = count
        at, stop = offsets[row], offsets[row + 1]
        message, out = count, written
        is_plain = False
        at = after_sign(cells, at, stop, 91)
        while at >= 0:
            at = after_sign(cells, at, stop, 123)
            if at < 0:
                break
            at = after_name(cells, at, stop, names, 0, name_stops[0])
            if at < 0:
                break
            at = after_sign(cells, at, stop, 58)
            if at < 0:
                break
            role = -1
            for number in range(2, len(name_stops)):
                behind = after_name(
                    cells, at, stop, names, name_stops[number - 1], name_stops[number]
                )
                if behind >= 0:
                    role, at = number - 2, behind
                    break
            if role < 0:
                break
            at = after_sign(cells, at, stop, 44)
            if at < 0:
                break
            at = after_name(cells, at, stop, names, name_stops[0], name_stops[1])
            if at < 0:
                break
            at = after_sign(cells, at, stop, 58)
            if at < 0 or at >= stop or cells[at] != 34:
                break
            at += 1
            begin, size = out, 0
            while at < stop:
                sign = int(cells[at])
                if sign == 34 or sign < 32:
                    break
                if sign != 92:
                    if sign == 0xEF and at + 1 < stop and cells[at + 1] == 0xB7:
                        break  # perhaps a mark
                    contents[out] = sign
                    out += 1
                    at += 1
                    size += (sign & 0xC0) != 0x80
                    continue
                if at + 1 >= stop:
                    break
                sign = int(cells[at + 1])
                at += 2
                if sign == 110:
                    sign = 10
                elif sign == 116:
                    sign = 9
                elif sign == 114:
                    sign = 13
                elif sign == 98:
                    sign = 8
                elif sign == 102:
                    sign = 12
                elif sign == 117:
                    if at + 4 > stop:
                        break
                    sign = hexadecimal(cells, at)
                    at += 4
                    if 0xD800 <= sign < 0xDC00:
                        if at + 6 > stop or cells[at] != 92 or cells[at + 1] != 117:
                            sign = -1
                        else:
                            low = hexadecimal(cells, at + 2)
                            at += 6
                            is_pair = 0xDC00 <= low < 0xE000
                            sign = (
                                0x10000 + (sign - 0xD800) * 1024 + low - 0xDC00 if is_pair else -1
                            )
                    elif 0xDC00 <= sign < 0xE000 or 0xFDC0 <= sign < 0xFE00:
                        sign = -1
                    if sign < 0:
                        at = stop
                        break
                elif sign != 34 and sign != 92 and sign != 47:
                    at = stop
                    break
                size += 1
                if sign < 0x80:
                    contents[out] = sign
                    out += 1
                elif sign < 0x800:
                    contents[out] = 0xC0 | sign >> 6
                    contents[out + 1] = 0x80 | sign & 0x3F
                    out += 2
                elif sign < 0x10000:
                    contents[out] = 0xE0 | sign >> 12
                    contents[out + 1] = 0x80 | sign >> 6 & 0x3F
                    contents[out + 2] = 0x80 | sign & 0x3F
                    out += 3
                else:
                    contents[out] = 0xF0 | sign >> 18
                    contents[out + 1] = 0x80 | sign >> 12 & 0x3F
                    contents[out + 2] = 0x80 | sign >> 6 & 0x3F
                    contents[out + 3] = 0x80 | sign & 0x3F
                    out += 4
            if at >= stop or cells[at] != 34:
                break
            place = begin
            while place < out:
                space = space_size(contents, place, out)
                if space == 0:
                    break
                place += space
            if place == out:
                break  # blank
            roles[message] = role
            stops[message] = out
            characters[message] = size
            message += 1
            at = after_sign(cells, at + 1, stop, 125)
            if at < 0 or at >= stop:
                break
            if cells[at] == 93:
                is_plain = after_space(cells, at + 1, stop) == stop
                break
            at = after_sign(cells, at, stop, 44)
        if is_plain:
            count, written = message, out
    firsts[len(offsets) - 1] = count
    return count


@inlined
def stripped_begin(text: UInt8, at: int, stop: int, how: int) -> int:
    """The place behind the characters that are stripped from the left."""
    while how != KEEP and at < stop:
        size = space_size(text, at, stop) if how == SPACE else int(text[at] == 10)
        if size == 0:
            break
        at += size
    return at


@inlined
def stripped_end(text: UInt8, at: int, stop: int, how: int) -> int:
    """The place before the characters that are stripped from the right."""
    while how != KEEP and stop > at:
        last = stop - 1
        while how == SPACE and last > at and text[last] & 0xC0 == 0x80:
            last -= 1
        size = space_size(text, last, stop) if how == SPACE else int(text[last] == 10)
        if size == 0:
            break
        stop = last
    return stop


@inlined
def has_part(text: UInt8, at: int, stop: int, parts: UInt8, first: int, last: int) -> bool:
    """True if a text begins with a part."""
    if at + last - first > stop:
        return False
    for place in range(last - first):  # noqa: SIM110 for numba
        if text[at + place] != parts[first + place]:
            return False
    return True


@kernel
def measure_chats(
    rows: Int64,
    firsts: Int64,
    stops: Int64,
    characters: Int64,
    contents: UInt8,
    guards: Int64,
    parts: UInt8,
    values: Int64,
    constant: int,
    most: int,
    sizes: Out[Int64],
) -> None:
    """Sizes of composed rows in bytes; -1 where a guard does not hold.

    rows: their numbers. firsts, stops, characters, contents: see `read_chats`. guards: of each its
    question, message, begin and end in `parts`, and answer. values: of each its message, and what
    is stripped on the left and on the right. constant: bytes of the template. most: see `Trace`.
    """
    for place in range(len(rows)):
        first, last = firsts[rows[place]], firsts[rows[place] + 1]
        total = 0
        for message in range(first, last):
            total += characters[message]
        size = constant if total <= most else -1
        for guard in range(0, len(guards), 5):
            if size < 0:
                break
            message = first + guards[guard + 1]
            begin = stops[message - 1] if message else 0
            stop = stops[message]
            a, b = guards[guard + 2], guards[guard + 3]
            if guards[guard] == TRUTH:
                answer = True
            elif guards[guard] == BEGINS:
                answer = has_part(contents, begin, stop, parts, a, b)
            elif guards[guard] == ENDS:
                answer = stop - b + a >= begin and has_part(
                    contents, stop - b + a, stop, parts, a, b
                )
            else:
                answer = False
                for at in range(begin, stop - b + a + 1):
                    if has_part(contents, at, stop, parts, a, b):
                        answer = True
                        break
            if answer != (guards[guard + 4] == 1):
                size = -1
        for value in range(0, len(values), 3):
            if size < 0:
                break
            message = first + values[value]
            begin = stops[message - 1] if message else 0
            begin = stripped_begin(contents, begin, stops[message], values[value + 1])
            size += stripped_end(contents, begin, stops[message], values[value + 2]) - begin
        sizes[place] = size


@inlined
def copied(target: UInt8, source: UInt8) -> int:
    """Copy bytes; returns their number. Views from 0 on are copied many bytes at a time."""
    for place in range(len(source)):
        target[place] = source[place]
    return len(source)


@inlined
def character_count(text: UInt8) -> int:
    """Number of characters of UTF-8."""
    count = 0
    for place in range(len(text)):
        count += (text[place] & 0xC0) != 0x80
    return count


@inlined
def sign_count(text: UInt8, sign: int) -> int:
    """Number of bytes that are a sign."""
    count = 0
    for place in range(len(text)):
        count += text[place] == sign
    return count


@kernel
def write_chats(
    rows: Int64,
    firsts: Int64,
    stops: Int64,
    characters: Int64,
    contents: UInt8,
    literals: UInt8,
    literal_stops: Int64,
    values: Int64,
    bounds: Int64,
    tokens: UInt8,
    token_stops: Int64,
    signs: Int64,
    is_clear: bool,
    special: int,
    offsets: Int64,
    span_offsets: Int32,
    text: Out[UInt8],
    trained: Out[Int32],
    done: Out[Bools],
) -> None:
    """Write composed rows.

    rows, firsts, stops, characters, contents, values: see `measure_chats`. literals,
    literal_stops: of the template, one more than values. bounds: of the trained spans, each as
    values before it and characters of the template; rising. tokens, token_stops: beginnings of
    special tokens; signs: each byte with which one begins, and its number in the literals; special:
    number of beginnings in the literals. is_clear: texts without signs have no special tokens.
    offsets, span_offsets: of all rows in text and trained. Out: trained, positions in characters;
    done: True where the row has no other beginnings of special tokens.
    """
    for place in range(len(rows)):
        row = rows[place]
        first, begin_row, before = firsts[row], offsets[row], 0
        out, span, bound = begin_row, int(span_offsets[row]), 0
        for part in range(len(literal_stops)):
            while bound < len(bounds) and bounds[bound] <= part:
                trained[span] = before + bounds[bound + 1]
                span += 1
                bound += 2
            begin = literal_stops[part - 1] if part else 0
            out += copied(text[out:], literals[begin : literal_stops[part]])
            if 3 * part < len(values):
                message = first + values[3 * part]
                start = stops[message - 1] if message else 0
                begin = stripped_begin(contents, start, stops[message], values[3 * part + 1])
                stop = stripped_end(contents, begin, stops[message], values[3 * part + 2])
                out += copied(text[out:], contents[begin:stop])
                before += characters[message]
                before -= character_count(contents[start:begin])
                before -= character_count(contents[stop : stops[message]])
        row_text = text[begin_row:out]
        is_done = is_clear
        for sign in range(0, len(signs), 2):
            is_done &= sign_count(row_text, signs[sign]) == signs[sign + 1]
        if not is_done:
            found = 0
            for at in range(len(row_text)):
                for token in range(len(token_stops)):
                    begin = token_stops[token - 1] if token else 0
                    found += has_part(
                        row_text, at, len(row_text), tokens, begin, token_stops[token]
                    )
            is_done = found == special
        done[row] = is_done
