/* Tiles and crops one input and holds the answers against a plain reading of it, coefficient by coefficient.
 *
 * The last eight bytes of an input choose the tile width and the boxes; the rest is the file. Sanitizers watch the
 * memory; here is watched that the answers mean what the input means: each MCU of a tiled or cut file has the
 * coefficients that it had, whatever tables and markers there are now. Aborts where that is not so.
 */
#include <stdio.h>

#include "jpeg.h"

enum { MOST_MCUS = 1 << 14, TAIL = 8, BOXES = 2 };

/* A bit at a time, straight from the file, over stuffed zeros. */
typedef struct {
    const uint8_t *data;
    size_t size, at;
    unsigned left;
    bool ended;
} plain_reader;

static unsigned next_bit(plain_reader *in)
{
    if (in->ended || in->at >= in->size || (in->data[in->at] == 0xFF && (in->at + 1 >= in->size || in->data[in->at + 1]))) {
        in->ended = true;
        return 0;
    }
    unsigned bit = in->data[in->at] >> --in->left & 1;
    if (!in->left) {
        in->at += in->data[in->at] == 0xFF ? 2 : 1;
        in->left = 8;
    }
    return bit;
}

static int next_symbol(plain_reader *in, const uint8_t *spec)
{
    int code = 0, first = 0, index = 16;
    for (int length = 0; length < 16; length++) {
        code = code << 1 | (int)next_bit(in);
        if (code - first < spec[length])
            return spec[index + code - first];
        index += spec[length];
        first = (first + spec[length]) << 1;
    }
    in->ended = true;
    return 0;
}

static int next_value(plain_reader *in, int bits)
{
    int value = 0;
    for (int i = 0; i < bits; i++)
        value = value << 1 | (int)next_bit(in);
    return bits && !(value >> (bits - 1)) ? value - (1 << bits) + 1 : value;
}

static uint64_t mixed(uint64_t hash, int64_t value)
{
    return (hash ^ (uint64_t)value) * 0x9E3779B97F4A7C15u + (hash >> 29);
}

/* A hash of the coefficients of each MCU; how many of them could be read. */
static size_t read_mcus(const jpeg *image, uint64_t *hashes)
{
    plain_reader in = {image->data, image->size, image->scan, 8, false};
    int dc[MAX_COMPONENTS] = {0};
    size_t total = (size_t)image->columns * image->rows;
    for (size_t mcu = 0; mcu < total; mcu++) {
        if (image->interval && mcu && mcu % image->interval == 0) {
            if (in.left < 8)
                in.at += in.data[in.at] == 0xFF ? 2 : 1;
            in.left = 8;
            if (in.size - in.at < 2 || in.data[in.at] != 0xFF || (in.data[in.at + 1] & 0xF8) != 0xD0)
                return mcu;
            in.at += 2;
            memset(dc, 0, sizeof dc);
        }
        uint64_t hash = 0;
        for (unsigned b = 0; b < image->blocks; b++) {
            const component *of = &image->component[image->block_component[b]];
            dc[image->block_component[b]] += next_value(&in, next_symbol(&in, image->dc[of->dc_table]) & 15);
            hash = mixed(hash, dc[image->block_component[b]]);
            for (int k = 1; k < 64; k++) {
                int symbol = next_symbol(&in, image->ac[of->ac_table]);
                if (!(symbol & 15) && symbol != 0xF0)
                    break;
                k += symbol >> 4;
                if (symbol & 15)
                    hash = mixed(mixed(hash, k), next_value(&in, symbol & 15));
            }
            if (in.ended)
                return mcu;
        }
        hashes[mcu] = hash;
    }
    return total;
}

static void insist(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static uint64_t before[MOST_MCUS], after[MOST_MCUS];

static void check_tiled(const jpeg *image, size_t known, const buffer *out, unsigned pixels)
{
    jpeg tiled;
    buffer again = {0};
    insist(jpeg_parse(&tiled, out->bytes, out->size) == FINE, "a tiled file has a sound header");
    insist(tiled.width == image->width && tiled.height == image->height, "tiling keeps the size");
    insist(jpeg_tile(out->bytes, out->size, pixels, true, &again) == WHOLE, "a tiled file is left alone");
    buffer_free(&again);
    if (!known)
        return;
    insist(known == (size_t)image->columns * image->rows, "only a sound scan is tiled");
    insist(read_mcus(&tiled, after) == known, "a tiled scan is sound");
    insist(!memcmp(before, after, known * sizeof *before), "tiling keeps every coefficient");
}

static void check_cut(const jpeg *image, size_t known, const buffer *out, box wanted, unsigned dx, unsigned dy)
{
    jpeg part;
    insist(jpeg_parse(&part, out->bytes, out->size) == FINE, "a cut file has a sound header");
    insist(dx + wanted.width <= part.width && dy + wanted.height <= part.height, "the box lies in the cut");
    insist((wanted.x - dx) % image->mcu_width == 0 && (wanted.y - dy) % image->mcu_height == 0, "cuts lie between MCUs");
    unsigned left = (wanted.x - dx) / image->mcu_width, top = (wanted.y - dy) / image->mcu_height;
    size_t needed = (size_t)(top + part.rows - 1) * image->columns + left + part.columns;
    if (known < needed || part.columns * part.rows > MOST_MCUS)
        return;
    insist(read_mcus(&part, after) == (size_t)part.columns * part.rows, "a cut scan is sound");
    for (unsigned row = 0; row < part.rows; row++)
        insist(!memcmp(after + (size_t)row * part.columns, before + (size_t)(top + row) * image->columns + left,
                       part.columns * sizeof *before), "cutting keeps every coefficient");
}

static void try_boxes(const uint8_t *data, size_t size, const uint8_t *tail)
{
    jpeg image;
    bool sound = jpeg_parse(&image, data, size) == FINE;
    size_t known = 0;
    if (sound && (size_t)image.columns * image.rows <= MOST_MCUS)
        known = read_mcus(&image, before);
    for (unsigned i = 0; i < BOXES; i++) {
        unsigned width = sound ? image.width : 16, height = sound ? image.height : 16;
        box wanted = {width * tail[i] / 256, height * tail[i + 1] / 256, 1, 1};
        wanted.width += (width - wanted.x - 1) * tail[i + 2] / 255;
        wanted.height += (height - wanted.y - 1) * tail[i + 3] / 255;
        wanted.width += tail[i] == 255; /* out of the picture, at times */
        buffer out = {0};
        unsigned dx = 0, dy = 0;
        verdict said = jpeg_crop(data, size, wanted, &out, &dx, &dy);
        insist(sound || (said != FINE && said != WHOLE), "only files with a sound header are cut");
        if (said == FINE)
            check_cut(&image, known, &out, wanted, dx, dy);
        buffer_free(&out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    if (size < TAIL)
        return 0;
    size -= TAIL;
    /* A copy of just the file's size, so that a sanitizer sees a read behind it. */
    uint8_t *data = malloc(size ? size : 1);
    if (!data)
        return 0;
    memcpy(data, input, size);
    const uint8_t *tail = input + size;
    unsigned pixels = 1 + tail[7] % 128;
    try_boxes(data, size, tail);
    buffer out = {0};
    verdict said = jpeg_tile(data, size, pixels, tail[6] & 1, &out);
    if (said == FINE) {
        jpeg image;
        size_t known = 0;
        insist(jpeg_parse(&image, data, size) == FINE, "only files with a sound header are tiled");
        if ((size_t)image.columns * image.rows <= MOST_MCUS)
            known = read_mcus(&image, before);
        check_tiled(&image, known, &out, pixels);
        try_boxes(out.bytes, out.size, tail);
    }
    buffer_free(&out);
    free(data);
    return 0;
}
