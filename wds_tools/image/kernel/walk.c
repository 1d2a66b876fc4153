#include "walk.h"

verdict walker_open(walker *walk, const jpeg *image, bool skips)
{
    memset(walk, 0, sizeof *walk);
    walk->image = image;
    walk->at = image->scan;
    walk->tables = malloc(2 * TABLES * sizeof *walk->tables);
    if (!walk->tables)
        return NO_MEMORY;
    unsigned opened = 0;
    for (unsigned c = 0; c < image->components; c++) {
        unsigned dc = image->component[c].dc_table, ac = image->component[c].ac_table;
        walk->dc_table[c] = walk->tables + dc;
        walk->ac_table[c] = walk->tables + TABLES + ac;
        if (!(opened >> dc & 1)) {
            if (!huffman_decoder_open(walk->dc_table[c], image->dc[dc]))
                return BAD_TABLES;
            for (unsigned i = 0; i < walk->dc_table[c]->total; i++)
                if (walk->dc_table[c]->symbols[i] >= DC_CATEGORIES)
                    return BAD_TABLES;
        }
        if (!(opened >> (TABLES + ac) & 1)) {
            if (!huffman_decoder_open(walk->ac_table[c], image->ac[ac]))
                return BAD_TABLES;
            if (skips)
                huffman_decoder_skips(walk->ac_table[c]);
        }
        opened |= 1u << dc | 1u << (TABLES + ac);
    }
    return FINE;
}

void walker_close(walker *walk)
{
    buffer_free(&walk->bytes);
    free(walk->tables);
    walk->tables = NULL;
}

/* Copies the segment that begins at `at` without its stuffed zeros. */
static verdict unstuff(walker *walk, size_t at)
{
    const uint8_t *data = walk->image->data;
    size_t size = walk->image->size;
    walk->bytes.size = 0;
    if (walk->image->interval == 0 && !buffer_reserve(&walk->bytes, size - at + READER_PADDING))
        return NO_MEMORY;
    for (;;) {
        const uint8_t *found = at + 1 < size ? memchr(data + at, 0xFF, size - at - 1) : NULL;
        if (!found)
            return BAD_CODES; /* the file ends without a marker */
        size_t stop = (size_t)(found - data);
        bool stuffed = !data[stop + 1];
        buffer_append(&walk->bytes, data + at, stop - at + stuffed);
        if (!stuffed) {
            at = stop;
            break;
        }
        at = stop + 2;
    }
    size_t count = walk->bytes.size;
    static const uint8_t zeros[READER_PADDING];
    buffer_append(&walk->bytes, zeros, READER_PADDING);
    if (walk->bytes.failed)
        return NO_MEMORY;
    walk->at = at;
    bits_open(&walk->in, walk->bytes.bytes, count, 0);
    memset(walk->dc, 0, sizeof walk->dc);
    return FINE;
}

verdict walker_seek(walker *walk, uint64_t mcu)
{
    const jpeg *image = walk->image;
    if (walk->segment_end && mcu < walk->segment_end)
        return FINE;
    size_t at = walk->at;
    uint64_t total = (uint64_t)image->columns * image->rows, start = walk->segment_end;
    uint64_t interval = image->interval ? image->interval : total;
    for (;;) {
        if (start) {
            if (image->size - at < 2 || image->data[at + 1] != 0xD0 + ((start / interval - 1) & 7))
                return BAD_MARKERS;
            at += 2;
        }
        if (mcu - start < interval)
            break;
        at = jpeg_segment_end(image->data, image->size, at);
        start += interval;
    }
    walk->mcu = start;
    walk->segment_end = start + interval < total ? start + interval : total;
    return unstuff(walk, at);
}

/* The AC codes behind coefficient `k`, one by one. */
static bool skip_coefficients(const huffman_decoder *table, bit_reader *in, unsigned k)
{
    while (k < 63) {
        bits_fill(in);
        uint32_t entry = huffman_look(table, in);
        unsigned symbol = ENTRY_SYMBOL(entry), run = symbol >> 4, length = symbol & 15;
        bits_skip(in, ENTRY_BITS(entry));
        if (!symbol)
            return entry != 0;
        k += run + 1;
        if (length > AC_BITS || (!length && run != 15) || k > 63 - !length)
            return false;
    }
    return true;
}

/* The AC codes of a block; at least LOOK + AC_BITS bits are held. */
static ALWAYS_INLINE bool skip_block(const huffman_decoder *table, bit_reader *in)
{
    unsigned k = 0;
    skip_entry entry;
    for (;;) {
        entry = table->skip[bits_peek(in, LOOK)];
        if (k + entry.needs > 63)
            break;
        bits_skip(in, entry.bits);
        k += entry.advance;
        bits_fill(in);
        entry = table->skip[bits_peek(in, LOOK)];
        if (k + entry.needs > 63)
            break;
        bits_skip(in, entry.bits);
        k += entry.advance;
    }
    if (LIKELY(entry.needs == BLOCK_ENDS && k + entry.advance <= 63)) {
        bits_skip(in, entry.bits);
        return true;
    }
    return skip_coefficients(table, in, k);
}

static ALWAYS_INLINE verdict walk_mcu(walker *walk, bit_reader *in, opening *found)
{
    const jpeg *image = walk->image;
    unsigned seen = 0;
    for (unsigned b = 0; b < image->blocks; b++) {
        unsigned c = image->block_component[b];
        int32_t difference;
        bits_fill(in);
        size_t start = found ? bits_position(in) : 0;
        if (!read_difference(walk->dc_table[c], in, &difference))
            return BAD_CODES;
        int32_t value = walk->dc[c] += difference;
        if (value < -MAX_DC || value > MAX_DC)
            return BAD_DC;
        if (found && !(seen >> c & 1)) {
            seen |= 1u << c;
            found->start[c] = start;
            found->end[c] = bits_position(in);
            found->value[c] = value;
        }
        if (!skip_block(walk->ac_table[c], in))
            return BAD_CODES;
    }
    return bits_overrun(in) ? BAD_CODES : FINE;
}

verdict walker_skip(walker *walk, uint64_t mcu)
{
    bit_reader in = walk->in; /* a copy that can live in registers */
    verdict said = FINE;
    for (; walk->mcu < mcu && said == FINE; walk->mcu++)
        said = walk_mcu(walk, &in, NULL);
    walk->in = in;
    return said;
}

verdict walker_step(walker *walk, opening *found)
{
    walk->mcu++;
    return walk_mcu(walk, &walk->in, found);
}
