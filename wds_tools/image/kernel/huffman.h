/* Huffman tables, T.81 annexes C and K.2: for reading, for writing, best for given counts.
 *
 * Codes are read by a look at the next LOOK bits. Two tables answer: `entry` one symbol at a time, and for AC codes
 * `skip` as many as can be seen at once when their values do not matter: where a coefficient's code lies whole within the look,
 * the length of its value is known, and the next code begins behind it.
 */
#ifndef WDS_HUFFMAN_H
#define WDS_HUFFMAN_H

#include "bits.h"
#include "jpeg.h"

enum { LOOK = 10, DC_CATEGORIES = 12, AC_BITS = 10 };

/* An entry of `skip`: `bits` to pass, `advance` by as many coefficients, valid if `needs` of them are left. Where the
 * block ends within the look, `needs` is BLOCK_ENDS, and `advance` what must be left for that. */
typedef struct {
    uint8_t bits, advance, needs, unused;
} skip_entry;

enum { BLOCK_ENDS = 128, NOT_SEEN = 192 };

typedef struct {
    uint8_t counts[17]; /* of codes of 1 to 16 bits */
    uint8_t symbols[256];
    unsigned total;
    uint32_t entry[1 << LOOK]; /* 0 where the code is longer, or is none */
    int32_t last[18];           /* the last code of a length, -1 where there is none */
    int32_t offset[17];         /* symbols[code + offset[length]] */
    skip_entry skip[1 << LOOK];
} huffman_decoder;

typedef struct {
    uint8_t counts[17];
    uint8_t symbols[256];
    unsigned total;
    uint16_t code[256];
    uint8_t length[256]; /* 0: the symbol has no code */
} huffman_encoder;

/* From a DHT segment's 16 counts and symbols; false when there can be no such table. */
bool huffman_decoder_open(huffman_decoder *table, const uint8_t *spec);
void huffman_decoder_skips(huffman_decoder *table);

bool huffman_encoder_open(huffman_encoder *table, const uint8_t *spec);

/* The shortest codes of at most 16 bits for symbols that occur so often. */
void huffman_encoder_best(huffman_encoder *table, const uint64_t *frequency);

/* A code for one more symbol, behind the codes that are there, which stay as they are; false when there is no room. */
bool huffman_encoder_extend(huffman_encoder *table, uint8_t symbol);

/* Appends the table as a DHT segment's content: class and place, counts, symbols. */
void huffman_encoder_write(const huffman_encoder *table, uint8_t place, buffer *out);

/* What a code says: the symbol, the code's length, and that with the bits of the value behind it. */
#define ENTRY(symbol, length) (((length) + ((symbol) & 15u)) << 16 | (length) << 8 | (symbol))
#define ENTRY_SYMBOL(entry) ((entry) & 255)
#define ENTRY_LENGTH(entry) ((entry) >> 8 & 255)
#define ENTRY_BITS(entry) ((entry) >> 16)

uint32_t huffman_search(const huffman_decoder *table, const bit_reader *in);

/* The entry of the next code, of which 16 bits must be held; 0 when there is none. */
static ALWAYS_INLINE uint32_t huffman_look(const huffman_decoder *table, const bit_reader *in)
{
    uint32_t found = table->entry[bits_peek(in, LOOK)];
    return LIKELY(found) ? found : huffman_search(table, in);
}

/* The bits behind the code. */
static ALWAYS_INLINE uint32_t huffman_value(uint32_t entry, const bit_reader *in)
{
    return (uint32_t)(in->held << ENTRY_LENGTH(entry) >> 1 >> (63 - (entry & 15)));
}

#endif
