/* Reading and writing bits, most significant first.
 *
 * The reader works on bytes from which the stuffed zeros are gone. Behind their end it reads zeros for ever: whoever
 * reads asks `bits_overrun` from time to time. The writer gathers bytes that still have to be stuffed; both are free of
 * branches that a processor cannot foresee.
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

enum { WRITER_SLACK = 16 }; /* bytes to make room for beyond those that are written */

typedef struct {
    buffer raw;
    uint64_t held; /* left-aligned */
    unsigned count; /* less than 8 between calls */
} bit_writer;

static ALWAYS_INLINE void store_big_endian(uint8_t *at, uint64_t word)
{
#if defined(__GNUC__) && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
    memcpy(at, &word, 8);
#else
    for (int i = 7; i >= 0; i--, word >>= 8)
        at[i] = (uint8_t)word;
#endif
}

static ALWAYS_INLINE bool bits_room(bit_writer *to, size_t bytes)
{
    return LIKELY(to->raw.room - to->raw.size >= bytes + WRITER_SLACK) || buffer_reserve(&to->raw, bytes + WRITER_SLACK);
}

/* Appends the lowest `count` bits of `value`, 0 to 32, for which there must be room; no other bit of it may be set. */
static ALWAYS_INLINE void bits_put(bit_writer *to, uint32_t value, unsigned count)
{
    to->count += count;
    to->held |= (uint64_t)value << (63 - to->count) << 1; /* no bits at all would be a shift by 64 */
    store_big_endian(to->raw.bytes + to->raw.size, to->held);
    to->raw.size += to->count >> 3;
    to->held <<= to->count & ~7u;
    to->count &= 7;
}

/* Appends bytes with a zero behind each FF. */
static inline void stuff(const uint8_t *bytes, size_t size, buffer *out)
{
    if (!buffer_reserve(out, size + size / 64 + 64))
        return;
    for (const uint8_t *end = bytes + size, *found; bytes < end; bytes = found) {
        found = memchr(bytes, 0xFF, (size_t)(end - bytes));
        found = found ? found + 1 : end;
        buffer_append(out, bytes, (size_t)(found - bytes));
        if (found[-1] == 0xFF)
            buffer_append_byte(out, 0);
    }
}

/* Moves what was written to `out`; the last byte is filled with ones, as the standard asks before a marker. */
static inline void bits_finish(bit_writer *to, buffer *out)
{
    if (to->count && bits_room(to, 1))
        bits_put(to, 0xFFu >> to->count, 8 - to->count);
    stuff(to->raw.bytes, to->raw.size, out);
    if (to->raw.failed)
        out->failed = true;
    to->raw.size = to->count = 0;
    to->held = 0;
}

/* Appends the bits from one position of `bytes` to another; READER_PADDING as for a reader. */
static inline bool bits_copy(bit_writer *to, const uint8_t *bytes, size_t size, size_t from, size_t until)
{
    if (!bits_room(to, (until - from) / 8 + 1))
        return false;
    bit_reader in;
    bit_writer writer = *to;
    bits_open(&in, bytes, size, from);
    for (; until - from >= 32; from += 32) {
        bits_fill(&in);
        bits_put(&writer, bits_peek(&in, 32), 32);
        bits_skip(&in, 32);
    }
    if (until > from) {
        bits_fill(&in);
        bits_put(&writer, bits_peek(&in, (unsigned)(until - from)), (unsigned)(until - from));
    }
    *to = writer;
    return true;
}

#endif
