/* Lossless restart tiling.
 *
 * The scan is read twice. The first time checks every code and counts the symbols that the tiled scan will have: all
 * AC codes as they are, and the DC differences, of which those at the start of a tile count from zero. The second time
 * writes them with the tables that suit these counts best.
 */
#include "walk.h"

typedef struct {
    uint64_t dc[TABLES][256], ac[TABLES][256];
} statistics;

typedef struct {
    huffman_encoder dc[TABLES], ac[TABLES];
} encoders;

/* The width of a tile in MCUs: of the divisors of a row that give half to twice the width asked for the nearest to it (by
 * ratio), and where there is none, as in rows of a prime number of MCUs, the row. */
static unsigned tile_columns(const jpeg *image, unsigned pixels)
{
    unsigned best = 0;
    double best_ratio = 0;
    for (unsigned k = 1; k <= image->columns; k++) {
        if (image->columns % k)
            continue;
        double ratio = (double)k * image->mcu_width / pixels;
        if (ratio > 1)
            ratio = 1 / ratio;
        if (ratio >= 0.5 && ratio > best_ratio) {
            best = k;
            best_ratio = ratio;
        }
    }
    return best ? best : image->columns;
}

enum { MOST_BLOCK_BYTES = 4 * 64 }; /* 64 codes of 16 bits, each with 11 bits behind it, take less */

/* Reads an AC code behind coefficient `*k`, and counts its symbol, or else writes it; false where the block ends, and
 * `*k` is then above 64 where it should not have ended there. */
static ALWAYS_INLINE bool take_code(bit_reader *in, const huffman_decoder *table, uint64_t *counts,
                                    const huffman_encoder *ac, bit_writer *to, unsigned *k)
{
    uint32_t entry = huffman_look(table, in);
    unsigned symbol = ENTRY_SYMBOL(entry), run = symbol >> 4, length = symbol & 15;
    if (counts)
        counts[symbol]++;
    else
        bits_put(to, (uint32_t)ac->code[symbol] << length | huffman_value(entry, in), ac->length[symbol] + length);
    bits_skip(in, ENTRY_BITS(entry));
    *k += run + 1;
    if (LIKELY(length && length <= AC_BITS))
        return *k < 63;
    if (!symbol && entry)
        return *k = 63, false;
    if (symbol != 0xF0 || *k > 62)
        return *k = 65, false;
    return true;
}

/* Two codes, of at most 16 + 10 bits each, are read for one filling of the reader. */
static ALWAYS_INLINE bool take_block(bit_reader *in, const huffman_decoder *table, uint64_t *counts,
                                     const huffman_encoder *ac, bit_writer *to)
{
    unsigned k = 0;
    do
        bits_fill(in);
    while (take_code(in, table, counts, ac, to, &k) && take_code(in, table, counts, ac, to, &k));
    return k == 63;
}

/* Reads a DC difference and counts what it is from `*written`, the block before in the tile, or else writes that. */
static ALWAYS_INLINE verdict take_difference(walker *walk, bit_reader *in, unsigned c, int32_t *written,
                                             uint64_t *counts, const huffman_encoder *dc, bit_writer *to)
{
    int32_t difference;
    bits_fill(in);
    if (!read_difference(walk->dc_table[c], in, &difference))
        return BAD_CODES;
    int32_t value = walk->dc[c] += difference;
    difference = value - *written;
    *written = value;
    unsigned category = category_of(difference);
    if (value < -MAX_DC || value > MAX_DC || category >= DC_CATEGORIES)
        return BAD_DC;
    if (counts)
        counts[category]++;
    else
        bits_put(to, (uint32_t)dc->code[category] << category | difference_bits(difference, category),
                 dc->length[category] + category);
    return FINE;
}

/* One way over the scan: counts into `counts`, or else writes with `tables`. */
static ALWAYS_INLINE verdict pass(walker *walk, unsigned k, statistics *counts, const encoders *tables, buffer *out)
{
    const jpeg *image = walk->image;
    uint64_t total = (uint64_t)image->columns * image->rows, tile_end = k;
    int32_t written[MAX_COMPONENTS] = {0};
    bit_writer to = {0};
    unsigned marker = 0;
    verdict said = FINE;
    while (walk->segment_end < total && said == FINE) {
        said = walker_seek(walk, walk->segment_end);
        if (said != FINE)
            break;
        bit_reader in = walk->in;
        for (; walk->mcu < walk->segment_end && said == FINE; walk->mcu++) {
            if (walk->mcu == tile_end) {
                memset(written, 0, sizeof written);
                tile_end += k;
                if (!counts) {
                    uint8_t restart[2] = {0xFF, (uint8_t)(0xD0 + (marker++ & 7))};
                    bits_finish(&to, out);
                    buffer_append(out, restart, 2);
                }
            }
            if (!counts && !bits_room(&to, MAX_BLOCKS * MOST_BLOCK_BYTES)) {
                said = NO_MEMORY;
                break;
            }
            for (unsigned b = 0; b < image->blocks; b++) {
                unsigned c = image->block_component[b];
                unsigned dc = image->component[c].dc_table, ac = image->component[c].ac_table;
                said = take_difference(walk, &in, c, &written[c], counts ? counts->dc[dc] : NULL,
                                       counts ? NULL : &tables->dc[dc], &to);
                if (said == FINE && !take_block(&in, walk->ac_table[c], counts ? counts->ac[ac] : NULL,
                                                counts ? NULL : &tables->ac[ac], &to))
                    said = BAD_CODES;
                if (said != FINE)
                    break;
            }
            if (said == FINE && bits_overrun(&in))
                said = BAD_CODES;
        }
        walk->in = in;
        if (said == FINE && !walker_at_end(walk))
            said = BAD_CODES;
    }
    if (!counts)
        bits_finish(&to, out);
    buffer_free(&to.raw);
    return said;
}

static verdict count_symbols(walker *walk, unsigned k, statistics *counts)
{
    return pass(walk, k, counts, NULL, NULL);
}

static verdict write_scan(walker *walk, unsigned k, const encoders *tables, buffer *out)
{
    return pass(walk, k, NULL, tables, out);
}

/* Back to the scan's first MCU. */
static void rewind_walker(walker *walk)
{
    walk->at = walk->image->scan;
    walk->mcu = walk->segment_end = 0;
}

static void used_tables(const jpeg *image, unsigned *dc, unsigned *ac)
{
    *dc = *ac = 0;
    for (unsigned c = 0; c < image->components; c++) {
        *dc |= 1u << image->component[c].dc_table;
        *ac |= 1u << image->component[c].ac_table;
    }
}

static verdict choose_tables(const jpeg *image, const statistics *counts, bool optimise, encoders *tables)
{
    unsigned dc, ac;
    used_tables(image, &dc, &ac);
    for (unsigned t = 0; t < TABLES; t++) {
        if (dc >> t & 1) {
            if (optimise)
                huffman_encoder_best(&tables->dc[t], counts->dc[t]);
            else if (!huffman_encoder_open(&tables->dc[t], image->dc[t]))
                return BAD_TABLES;
            for (unsigned i = 0; i < DC_CATEGORIES; i++)
                if (counts->dc[t][i] && !tables->dc[t].length[i] &&
                    !huffman_encoder_extend(&tables->dc[t], (uint8_t)i))
                    return BAD_DC;
        }
        if (ac >> t & 1) {
            if (optimise)
                huffman_encoder_best(&tables->ac[t], counts->ac[t]);
            else if (!huffman_encoder_open(&tables->ac[t], image->ac[t]))
                return BAD_TABLES;
        }
    }
    return FINE;
}

static void write_marker(buffer *out, uint8_t code, size_t length)
{
    uint8_t head[4] = {0xFF, code, (uint8_t)((length + 2) >> 8), (uint8_t)(length + 2)};
    buffer_append(out, head, 4);
}

/* Everything before the coded bits: the segments as they are, but for restart interval and Huffman tables. */
static void write_head(const jpeg *image, unsigned k, const encoders *tables, buffer *out)
{
    unsigned dc, ac;
    size_t length = 0;
    buffer_append(out, image->data, 2);
    for (size_t at = 2; at < image->sos;) {
        size_t start = at;
        segment found;
        if (!jpeg_next_segment(image->data, image->size, &at, &found))
            break;
        if (found.code != 0xC4 && found.code != 0xDD)
            buffer_append(out, image->data + start, at - start);
    }
    used_tables(image, &dc, &ac);
    for (unsigned t = 0; t < TABLES; t++)
        length += (dc >> t & 1 ? 17 + tables->dc[t].total : 0) + (ac >> t & 1 ? 17 + tables->ac[t].total : 0);
    write_marker(out, 0xC4, length);
    for (unsigned t = 0; t < TABLES; t++)
        if (dc >> t & 1)
            huffman_encoder_write(&tables->dc[t], (uint8_t)t, out);
    for (unsigned t = 0; t < TABLES; t++)
        if (ac >> t & 1)
            huffman_encoder_write(&tables->ac[t], (uint8_t)(0x10 | t), out);
    write_marker(out, 0xDD, 2);
    buffer_append_byte(out, (uint8_t)(k >> 8));
    buffer_append_byte(out, (uint8_t)k);
    buffer_append(out, image->data + image->sos, image->scan - image->sos);
}

/* Behind the scan the end of the image must follow, at once but for fill bytes, which are passed. */
static bool ends_here(walker *walk)
{
    size_t size = walk->image->size;
    while (size - walk->at > 1 && walk->image->data[walk->at + 1] == 0xFF)
        walk->at++;
    return size - walk->at > 1 && walk->image->data[walk->at + 1] == 0xD9;
}

verdict jpeg_tile(const uint8_t *data, size_t size, unsigned pixels, bool optimise, buffer *out)
{
    jpeg image;
    verdict said = jpeg_parse(&image, data, size);
    if (said != FINE)
        return said;
    unsigned k = tile_columns(&image, pixels ? pixels : 1);
    if (image.interval == k || (uint64_t)image.columns * image.rows <= k)
        return WHOLE;
    walker walk;
    statistics *counts = calloc(1, sizeof *counts);
    encoders *tables = calloc(1, sizeof *tables);
    said = walker_open(&walk, &image, false);
    if (!counts || !tables)
        said = NO_MEMORY;
    if (said == FINE)
        said = count_symbols(&walk, k, counts);
    if (said == FINE && !ends_here(&walk))
        said = BAD_MARKERS;
    if (said == FINE)
        said = choose_tables(&image, counts, optimise, tables);
    if (said == FINE) {
        buffer_reserve(out, size + size / 8);
        write_head(&image, k, tables, out);
        rewind_walker(&walk);
        said = write_scan(&walk, k, tables, out);
        if (said == FINE && !ends_here(&walk))
            said = BAD_MARKERS; /* the bytes changed under our hands */
        else
            buffer_append(out, data + walk.at, size - walk.at);
        if (out->failed)
            said = NO_MEMORY;
    }
    walker_close(&walk);
    free(counts);
    free(tables);
    return said;
}
