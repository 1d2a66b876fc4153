/* A part of a picture as a JPEG of its own: MCUs are taken out of the scan, not decoded.
 *
 * Where restart markers cut every row of MCUs into tiles, tiles are copied whole. Elsewhere the Huffman codes are walked,
 * and the bits of each row's MCUs copied; only the DC codes that open a row are written anew, because a DC value is coded
 * as the difference from the block before. Pixels near the cut differ where a decoder smooths chroma across MCUs, so the
 * cut keeps a pixel's distance from the box.
 */
#include "walk.h"

/* Tiles wider than this are walked instead, where a row is one tile: what is copied beside the box costs more to decode. */
enum { WIDE_TILE = 256 };

/* libjpeg-turbo smooths chroma only where a row has more than two samples of it: a narrower cut would look different. */
enum { NARROWEST = 8 };

/* Walking an MCU costs about so many hundredths of decoding it. */
enum { WALKING = 35 };

static unsigned minimum(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* The units, `unit` pixels long, that the pixels from `start` on and their neighbours lie in. */
static void span(unsigned start, unsigned length, unsigned size, unsigned unit, unsigned *first, unsigned *end)
{
    unsigned last = minimum(start + length, size - 1);
    *first = (start ? start - 1 : 0) / unit;
    if (*first && size - *first * unit < NARROWEST)
        --*first;
    *end = last / unit + 1;
}

static void write_word(uint8_t *at, unsigned word)
{
    at[0] = (uint8_t)(word >> 8);
    at[1] = (uint8_t)word;
}

static bool begins(const jpeg *image, const segment *found, const char *name)
{
    return found->length >= 5 && !memcmp(image->data + found->body, name, 5);
}

/* The segments that decoding needs, with another size. */
static void write_head(const jpeg *image, cells part, unsigned interval, const huffman_encoder *dc, buffer *out)
{
    unsigned width = minimum(part.right * image->mcu_width, image->width) - part.left * image->mcu_width;
    unsigned height = minimum(part.bottom * image->mcu_height, image->height) - part.top * image->mcu_height;
    buffer_append(out, image->data, 2);
    for (size_t at = 2; at < image->sos;) {
        segment found;
        if (!jpeg_next_segment(image->data, image->size, &at, &found))
            break;
        bool frame = found.code == 0xC0 || found.code == 0xC1;
        if (!frame && found.code != 0xC4 && found.code != 0xDB && !(found.code == 0xE0 && begins(image, &found, "JFIF")) &&
            !(found.code == 0xEE && begins(image, &found, "Adobe")))
            continue;
        buffer_append(out, image->data + found.body - 4, found.length + 4);
        if (frame && !out->failed) {
            uint8_t *body = out->bytes + out->size - found.length;
            write_word(body + 1, height);
            write_word(body + 3, width);
        }
    }
    for (unsigned t = 0; dc && t < TABLES; t++) {
        if (!dc[t].total)
            continue;
        uint8_t head[4] = {0xFF, 0xC4};
        write_word(head + 2, 19 + dc[t].total);
        buffer_append(out, head, 4);
        huffman_encoder_write(&dc[t], (uint8_t)t, out);
    }
    if (interval) {
        uint8_t restarts[6] = {0xFF, 0xDD, 0, 4};
        write_word(restarts + 4, interval);
        buffer_append(out, restarts, 6);
    }
    buffer_append(out, image->data + image->sos, image->scan - image->sos);
}

static const uint8_t end_of_image[2] = {0xFF, 0xD9};

static verdict copy_tiles(const jpeg *image, cells part, buffer *out)
{
    const uint8_t *data = image->data;
    unsigned k = image->interval, across = image->columns / k, left = part.left / k, right = part.right / k;
    uint64_t last = (uint64_t)(part.bottom - 1) * across + right - 1, total = (uint64_t)image->rows * across;
    unsigned column = 0, row = 0, marker = 0;
    size_t at = image->scan;
    buffer_reserve(out, image->size); /* no more than that is kept, and what is not touched costs nothing */
    write_head(image, part, k, NULL, out);
    for (uint64_t tile = 0; tile <= last; tile++) {
        size_t end = jpeg_segment_end(data, image->size, at);
        if (image->size - end < 2 || data[end + 1] != (tile + 1 < total ? 0xD0 + (tile & 7) : 0xD9))
            return BAD_MARKERS;
        if (row >= part.top && column >= left && column < right) {
            buffer_append(out, data + at, end - at);
            if (tile < last) {
                uint8_t restart[2] = {0xFF, (uint8_t)(0xD0 + (marker++ & 7))};
                buffer_append(out, restart, 2);
            }
        }
        at = end + 2;
        if (++column == across) {
            column = 0;
            row++;
        }
    }
    buffer_append(out, end_of_image, 2);
    return FINE;
}

typedef struct {
    bit_writer to;
    int32_t dc[MAX_COMPONENTS]; /* the last block's value in what is written */
    huffman_encoder tables[TABLES];
    bool extended[TABLES];
} recoder;

static verdict put_difference(recoder *into, unsigned table, int32_t difference)
{
    huffman_encoder *codes = &into->tables[table];
    unsigned category = category_of(difference);
    if (category >= DC_CATEGORIES)
        return BAD_DC;
    if (!codes->length[category]) {
        if (!huffman_encoder_extend(codes, (uint8_t)category))
            return BAD_DC;
        into->extended[table] = true;
    }
    if (!bits_room(&into->to, 8))
        return NO_MEMORY;
    bits_put(&into->to, (uint32_t)codes->code[category] << category | difference_bits(difference, category),
             codes->length[category] + category);
    return FINE;
}

/* MCUs from the walker's place up to `end`, all in one segment. */
static verdict copy_run(walker *walk, uint64_t end, recoder *into)
{
    const jpeg *image = walk->image;
    const uint8_t *bytes = walk->bytes.bytes;
    size_t size = walk->in.size, at = bits_position(&walk->in);
    opening found;
    verdict said = walker_step(walk, &found);
    if (said == FINE)
        said = walker_skip(walk, end);
    if (said != FINE)
        return said;
    for (unsigned c = 0; c < image->components; c++) {
        if (!bits_copy(&into->to, bytes, size, at, found.start[c]))
            return NO_MEMORY;
        said = put_difference(into, image->component[c].dc_table, found.value[c] - into->dc[c]);
        if (said != FINE)
            return said;
        at = found.end[c];
        into->dc[c] = walk->dc[c];
    }
    return bits_copy(&into->to, bytes, size, at, bits_position(&walk->in)) ? FINE : NO_MEMORY;
}

static verdict copy_rows(walker *walk, cells part, recoder *into)
{
    unsigned columns = walk->image->columns;
    for (unsigned row = part.top; row < part.bottom; row++) {
        uint64_t mcu = (uint64_t)row * columns + part.left, end = (uint64_t)row * columns + part.right;
        while (mcu < end) {
            verdict said = walker_seek(walk, mcu);
            if (said == FINE)
                said = walker_skip(walk, mcu);
            if (said == FINE)
                said = copy_run(walk, end < walk->segment_end ? end : walk->segment_end, into);
            if (said != FINE)
                return said;
            mcu = walk->mcu;
        }
    }
    return FINE;
}

static verdict copy_mcus(const jpeg *image, cells part, buffer *out)
{
    walker walk;
    recoder into = {0};
    verdict said = walker_open(&walk, image, true);
    for (unsigned c = 0; c < image->components && said == FINE; c++) {
        unsigned t = image->component[c].dc_table;
        if (!huffman_encoder_open(&into.tables[t], image->dc[t]))
            said = BAD_TABLES;
    }
    if (said == FINE)
        said = copy_rows(&walk, part, &into);
    if (said == FINE) {
        for (unsigned t = 0; t < TABLES; t++)
            if (!into.extended[t])
                into.tables[t].total = 0;
        write_head(image, part, 0, into.tables, out);
        bits_finish(&into.to, out);
        buffer_append(out, end_of_image, 2);
    }
    walker_close(&walk);
    buffer_free(&into.to.raw);
    return said;
}

/* Whether walking up to the part's last row is cheaper than decoding what lies outside of the part. */
static bool walk_pays(const jpeg *image, cells part)
{
    uint64_t all = (uint64_t)image->columns * image->rows, walked = (uint64_t)image->columns * part.bottom;
    uint64_t kept = (uint64_t)(part.right - part.left) * (part.bottom - part.top);
    return (all - kept) * 100 > walked * WALKING;
}

verdict jpeg_crop(const uint8_t *data, size_t size, box wanted, buffer *out, unsigned *dx, unsigned *dy)
{
    jpeg image;
    verdict said = jpeg_parse(&image, data, size);
    if (said != FINE)
        return said;
    if (!wanted.width || !wanted.height || wanted.width > image.width || wanted.height > image.height ||
        wanted.x > image.width - wanted.width || wanted.y > image.height - wanted.height)
        return OUTSIDE;
    unsigned k = image.interval;
    bool tiled = k && image.columns % k == 0 && (k < image.columns || k * image.mcu_width <= WIDE_TILE);
    unsigned unit = tiled ? k : 1;
    cells part;
    span(wanted.x, wanted.width, image.width, unit * image.mcu_width, &part.left, &part.right);
    span(wanted.y, wanted.height, image.height, image.mcu_height, &part.top, &part.bottom);
    part.left *= unit;
    part.right *= unit;
    if (!tiled && !walk_pays(&image, part))
        part = (cells){0, 0, image.columns, image.rows};
    *dx = wanted.x - part.left * image.mcu_width;
    *dy = wanted.y - part.top * image.mcu_height;
    if (part.left == 0 && part.top == 0 && part.right == image.columns && part.bottom == image.rows)
        return WHOLE;
    said = tiled ? copy_tiles(&image, part, out) : copy_mcus(&image, part, out);
    return said == FINE && out->failed ? NO_MEMORY : said;
}
