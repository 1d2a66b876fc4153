/* Walking the MCUs of a scan without decoding them: where their bits lie, and their DC values.
 *
 * A walker holds one restart segment (the whole scan when there are no restart markers) with the stuffed zeros taken
 * out, so that a bit position is a plain number and bits can be copied in bulk. Nothing is believed: a code that does not exist,
 * a block of more than 64 coefficients, bits behind the segment's end, or a DC value that eight bits of precision cannot
 * give, stop the walk.
 */
#ifndef WDS_WALK_H
#define WDS_WALK_H

#include "huffman.h"

enum { MAX_DC = 2047 }; /* the largest value of 11 bits, the most that a baseline table codes */

typedef struct {
    const jpeg *image;
    bit_reader in;
    int32_t dc[MAX_COMPONENTS]; /* the last block's value; 0 at the start of a segment */
    uint64_t mcu, segment_end;  /* the next MCU; the first one of the next segment */
    size_t at;                  /* the marker behind the segment */
    buffer bytes;               /* the segment, unstuffed and padded */
    huffman_decoder *dc_table[MAX_COMPONENTS], *ac_table[MAX_COMPONENTS];
    huffman_decoder *tables; /* DC in 0-3, AC in 4-7 */
} walker;

/* Where the DC codes of an MCU lie that open a run of bits: the first block of each component. */
typedef struct {
    size_t start[MAX_COMPONENTS], end[MAX_COMPONENTS];
    int32_t value[MAX_COMPONENTS]; /* not a difference */
} opening;

/* To be closed whatever the answer. */
verdict walker_open(walker *walk, const jpeg *image, bool skips);
void walker_close(walker *walk);

/* Opens the segment in which `mcu` lies, which is not before the walker's place. */
verdict walker_seek(walker *walk, uint64_t mcu);

/* Goes over MCUs up to `mcu`, which lies in the open segment. */
verdict walker_skip(walker *walk, uint64_t mcu);

/* Goes over one MCU of the open segment. */
verdict walker_step(walker *walk, opening *found);

/* What must hold behind a segment's last MCU: less than a byte of padding. */
static ALWAYS_INLINE bool walker_at_end(const walker *walk)
{
    size_t position = bits_position(&walk->in), bits = walk->in.size * 8;
    return position <= bits && bits - position < 8;
}

/* The next DC difference (T.81 F.2.2.1), 0 to 27 of the bits that are held; false when there is no such code. */
static ALWAYS_INLINE bool read_difference(const huffman_decoder *table, bit_reader *in, int32_t *difference)
{
    uint32_t entry = huffman_look(table, in);
    int32_t bits = (int32_t)huffman_value(entry, in), range = 1 << (entry & 15);
    *difference = bits < range >> 1 ? bits - range + 1 : bits;
    bits_skip(in, ENTRY_BITS(entry));
    return entry != 0;
}

static ALWAYS_INLINE unsigned category_of(int32_t difference)
{
    unsigned category = 0;
    for (uint32_t left = (uint32_t)(difference < 0 ? -difference : difference); left; left >>= 1)
        category++;
    return category;
}

/* The bits behind the code of `category`. */
static ALWAYS_INLINE uint32_t difference_bits(int32_t difference, unsigned category)
{
    return (uint32_t)(difference < 0 ? difference - 1 : difference) & ((1u << category) - 1);
}

#endif
