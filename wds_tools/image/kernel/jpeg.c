#include "jpeg.h"

enum { SOF0 = 0xC0, SOF1 = 0xC1, DHT = 0xC4, DAC = 0xCC, SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, DQT = 0xDB, DNL = 0xDC,
       DRI = 0xDD };

static unsigned word(const uint8_t *at)
{
    return (unsigned)at[0] << 8 | at[1];
}

bool jpeg_next_segment(const uint8_t *data, size_t size, size_t *at, segment *found)
{
    size_t i = *at;
    if (i >= size || data[i] != 0xFF)
        return false;
    while (i < size && data[i] == 0xFF)
        i++;
    if (size - i < 3 || data[i] < 0xC0 || (data[i] >= 0xD0 && data[i] <= EOI))
        return false; /* no segment: stuffing, a marker that stands alone, or the end */
    unsigned length = word(data + i + 1);
    if (length < 2 || length > size - i - 1)
        return false;
    found->code = data[i];
    found->body = i + 3;
    found->length = length - 2;
    *at = found->body + found->length;
    return true;
}

static verdict read_frame(jpeg *image, const uint8_t *body, size_t length)
{
    if (image->components)
        return BAD_HEADER;
    if (length < 6 || length != 6 + 3 * (size_t)body[5] || !word(body + 3))
        return BAD_HEADER;
    image->height = word(body + 1);
    image->width = word(body + 3);
    image->components = body[5];
    if (body[0] != 8 || !image->height || (body[5] != 1 && body[5] != MAX_COMPONENTS))
        return NOT_BASELINE;
    unsigned h_max = 1, v_max = 1;
    for (unsigned c = 0; c < image->components; c++) {
        const uint8_t *at = body + 6 + 3 * c;
        component *it = &image->component[c];
        it->id = at[0];
        it->h = at[1] >> 4;
        it->v = at[1] & 15;
        if ((it->h != 1 && it->h != 2 && it->h != 4) || (it->v != 1 && it->v != 2 && it->v != 4))
            return BAD_SAMPLING;
        h_max = it->h > h_max ? it->h : h_max;
        v_max = it->v > v_max ? it->v : v_max;
        for (unsigned other = 0; other < c; other++)
            if (image->component[other].id == it->id)
                return BAD_HEADER;
    }
    if (image->components == 1) /* a scan of one component has no MCUs of several blocks, whatever its factors say */
        h_max = v_max = 1;
    for (unsigned c = 0; c < image->components; c++) {
        unsigned count = image->components == 1 ? 1u : (unsigned)image->component[c].h * image->component[c].v;
        if (image->blocks + count > MAX_BLOCKS)
            return BAD_SAMPLING;
        memset(image->block_component + image->blocks, (int)c, count);
        image->blocks += count;
    }
    image->mcu_width = 8 * h_max;
    image->mcu_height = 8 * v_max;
    image->columns = (image->width + image->mcu_width - 1) / image->mcu_width;
    image->rows = (image->height + image->mcu_height - 1) / image->mcu_height;
    return FINE;
}

static verdict read_huffman(jpeg *image, const uint8_t *body, size_t length)
{
    while (length) {
        if (length < 17 || (body[0] & 15) >= TABLES || body[0] >> 4 > 1)
            return BAD_TABLES;
        size_t count = 0;
        for (unsigned i = 1; i <= 16; i++)
            count += body[i];
        if (count > 256 || count > length - 17)
            return BAD_TABLES;
        (body[0] >> 4 ? image->ac : image->dc)[body[0] & 15] = body + 1;
        body += 17 + count;
        length -= 17 + count;
    }
    return FINE;
}

static verdict read_scan(jpeg *image, const uint8_t *body, size_t length)
{
    if (!image->components)
        return BAD_HEADER;
    if (length < 1 || length != 4 + 2 * (size_t)body[0])
        return BAD_HEADER;
    if (body[0] != image->components)
        return NOT_BASELINE;
    for (unsigned c = 0; c < image->components; c++) {
        component *it = &image->component[c];
        const uint8_t *at = body + 1 + 2 * c;
        it->dc_table = at[1] >> 4;
        it->ac_table = at[1] & 15;
        if (at[0] != it->id)
            return BAD_HEADER;
        if (it->dc_table >= TABLES || it->ac_table >= TABLES || !image->dc[it->dc_table] || !image->ac[it->ac_table])
            return BAD_TABLES;
    }
    const uint8_t *last = body + length - 3;
    return last[0] == 0 && last[1] == 63 && last[2] == 0 ? FINE : BAD_HEADER;
}

verdict jpeg_parse(jpeg *image, const uint8_t *data, size_t size)
{
    memset(image, 0, sizeof *image);
    image->data = data;
    image->size = size;
    if (size < 4 || data[0] != 0xFF || data[1] != SOI)
        return BAD_HEADER;
    for (size_t at = 2;;) {
        segment found;
        verdict said = FINE;
        image->sos = at;
        if (!jpeg_next_segment(data, size, &at, &found))
            return BAD_HEADER;
        const uint8_t *body = data + found.body;
        if (found.code == SOF0 || found.code == SOF1)
            said = read_frame(image, body, found.length);
        else if (found.code == DHT)
            said = read_huffman(image, body, found.length);
        else if (found.code == DRI) {
            if (found.length != 2)
                return BAD_HEADER;
            image->interval = word(body);
        } else if (found.code == SOS) {
            image->scan = at;
            return read_scan(image, body, found.length);
        } else if (found.code < 0xD0)
            return NOT_BASELINE; /* other frames, arithmetic coding */
        else if (found.code == DNL || found.code == 0xDE || found.code == 0xDF)
            return NOT_BASELINE; /* hierarchical files */
        if (said != FINE)
            return said;
    }
}

size_t jpeg_segment_end(const uint8_t *data, size_t size, size_t at)
{
    while (at + 1 < size) {
        const uint8_t *found = memchr(data + at, 0xFF, size - at - 1);
        if (!found)
            break;
        at = (size_t)(found - data);
        if (data[at + 1])
            return at;
        at += 2;
    }
    return size;
}
