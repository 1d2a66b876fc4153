/* Reading and writing bits, most significant first.
 *
 * The reader works on bytes from which the stuffed zeros are gone. Behind their end it reads zeros for ever: whoever
 * reads asks `bits_overrun` from time to time. The writer stuffs.
 */
#ifndef WDS_BITS_H
#define WDS_BITS_H

#include "buffer.h"

#if defined(__GNUC__)
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define LIKELY(x) (x)
#define ALWAYS_INLINE inline
#endif

enum { READER_PADDING = 8 }; /* zeros that must follow the bytes of a reader */

typedef struct {
    const uint8_t *bytes;
    size_t size, next; /* `next`: the first byte that is not in `held` whole */
    uint64_t held;     /* left-aligned */
    unsigned count;    /* how many of its bits are in `held` */
} bit_reader;

static ALWAYS_INLINE uint64_t load_big_endian(const uint8_t *at)
{
#if defined(__GNUC__) && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    uint64_t word;
    memcpy(&word, at, 8);
    return __builtin_bswap64(word);
#else
    uint64_t word = 0;
    for (int i = 0; i < 8; i++)
        word = word << 8 | at[i];
    return word;
#endif
}

/* At least 56 bits are held afterwards (the scheme is Fabian Giesen's "variant 4"). */
static ALWAYS_INLINE void bits_fill(bit_reader *in)
{
    if (LIKELY(in->next < in->size))
        in->held |= load_big_endian(in->bytes + in->next) >> in->count;
    in->next += (63 - in->count) >> 3;
    in->count |= 56;
}

static ALWAYS_INLINE void bits_need(bit_reader *in, unsigned count)
{
    if (in->count < count)
        bits_fill(in);
}

static ALWAYS_INLINE void bits_skip(bit_reader *in, unsigned count)
{
    in->held <<= count;
    in->count -= count;
}

/* The next `count` bits, 1 to 32. */
static ALWAYS_INLINE uint32_t bits_peek(const bit_reader *in, unsigned count)
{
    return (uint32_t)(in->held >> (64 - count));
}

static inline void bits_open(bit_reader *in, const uint8_t *bytes, size_t size, size_t bit)
{
    in->bytes = bytes;
    in->size = size;
    in->next = bit >> 3;
    in->held = 0;
    in->count = 0;
    if (bit & 7) {
        bits_fill(in);
        bits_skip(in, bit & 7);
    }
}

static ALWAYS_INLINE size_t bits_position(const bit_reader *in)
{
    return in->next * 8 - in->count;
}

static ALWAYS_INLINE bool bits_overrun(const bit_reader *in)
{
    return bits_position(in) > in->size * 8;
}

typedef struct {
    buffer *out;
    uint64_t held;  /* right-aligned */
    unsigned count; /* less than 32 between calls */
} bit_writer;

static ALWAYS_INLINE void bits_flush_word(bit_writer *to, uint32_t word)
{
    buffer *out = to->out;
    if (out->room - out->size < 8 && !buffer_reserve(out, 64))
        return;
    uint8_t *at = out->bytes + out->size;
    uint32_t inverse = ~word;
    if (LIKELY(!((inverse - 0x01010101u) & word & 0x80808080u))) { /* no byte is FF */
        at[0] = (uint8_t)(word >> 24);
        at[1] = (uint8_t)(word >> 16);
        at[2] = (uint8_t)(word >> 8);
        at[3] = (uint8_t)word;
        out->size += 4;
        return;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint8_t byte = (uint8_t)(word >> shift);
        out->bytes[out->size++] = byte;
        if (byte == 0xFF)
            out->bytes[out->size++] = 0;
    }
}

/* Appends the lowest `count` bits of `value`, 0 to 32; no other bit of it may be set. */
static ALWAYS_INLINE void bits_put(bit_writer *to, uint32_t value, unsigned count)
{
    to->held = to->held << count | value;
    to->count += count;
    if (to->count >= 32) {
        to->count -= 32;
        bits_flush_word(to, (uint32_t)(to->held >> to->count));
    }
}

/* Fills the last byte with ones, as the standard asks before a marker. */
static inline void bits_finish(bit_writer *to)
{
    unsigned padding = (8 - to->count % 8) % 8;
    bits_put(to, (1u << padding) - 1, padding);
    while (to->count) {
        to->count -= 8;
        uint8_t byte = (uint8_t)(to->held >> to->count);
        buffer_append_byte(to->out, byte);
        if (byte == 0xFF)
            buffer_append_byte(to->out, 0);
    }
    to->held = 0;
}

/* Appends the bits from one position of `bytes` to another; READER_PADDING as for a reader. */
static inline void bits_copy(bit_writer *to, const uint8_t *bytes, size_t size, size_t from, size_t until)
{
    bit_reader in;
    bits_open(&in, bytes, size, from);
    for (; until - from >= 32; from += 32) {
        bits_need(&in, 32);
        bits_put(to, bits_peek(&in, 32), 32);
        bits_skip(&in, 32);
    }
    if (until > from) {
        unsigned rest = (unsigned)(until - from);
        bits_need(&in, 32);
        bits_put(to, bits_peek(&in, rest), rest);
    }
}

#endif
